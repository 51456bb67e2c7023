"""Small networks of many families, written as people write them, with dropout and BatchNorm where their family has them.

`ARCHITECTURES` maps a name to a function that gives the module, an example batch of two, and another batch of three.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Made = tuple[nn.Module, tuple[Tensor, ...], tuple[Tensor, ...]]
TOKENS, CONTEXT = 32, 8


def conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, outputs, stride=stride), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2, self.bn2 = conv(outputs, outputs), nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet(nn.Module):
    """As torchvision writes it: a flat list of attributes, and a forward that calls them."""

    def __init__(self, widths: tuple[int, ...] = (8, 12), blocks: int = 2, classes: int = 5) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, widths[0], 7, 2, 3, bias=False), nn.BatchNorm2d(widths[0])
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        inputs = widths[0]
        self.num_layers = len(widths)
        for number, width in enumerate(widths, start=1):
            layer = []
            for block in range(blocks):
                layer.append(Block(inputs, width, 2 if number > 1 and block == 0 else 1))
                inputs = width
            self.add_module(f"layer{number}", nn.Sequential(*layer))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for number in range(1, self.num_layers + 1):
            x = self.get_submodule(f"layer{number}")(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


class DenseNet(nn.Module):
    """Every layer sees all layers before it (Huang et al., 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 8)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(8 + 4 * i), nn.ReLU(), conv(8 + 4 * i, 4)) for i in range(3)
        )
        self.transition = nn.Sequential(nn.BatchNorm2d(20), nn.ReLU(), conv(20, 10, 1), nn.AvgPool2d(2))
        self.more = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(10 + 4 * i), nn.ReLU(), conv(10 + 4 * i, 4)) for i in range(2)
        )
        self.classifier = nn.Linear(18, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = torch.cat([x, F.dropout(layer(x), 0.2, self.training)], 1)
        x = self.transition(x)
        for layer in self.more:
            x = torch.cat([x, layer(x)], 1)
        return self.classifier(x.relu_().mean((2, 3)))


class Inception(nn.Module):
    """Branches side by side, joined (Szegedy et al., 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, 8), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.narrow, self.wide, self.pooled = (
            conv(8, 4, 1),
            nn.Sequential(conv(8, 4, 1), nn.ReLU(), conv(4, 6)),
            conv(8, 2, 1),
        )
        self.top = nn.Sequential(
            conv(12, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.4), nn.Linear(32, 5)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        pooled = self.pooled(F.max_pool2d(x, 3, 1, 1))
        return self.top(torch.cat([self.narrow(x), self.wide(x), pooled], dim=1))


class Squeeze(nn.Module):
    """An inverted residual with squeeze and excitation, and stochastic depth (Tan and Le, 2019)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        hidden = 2 * channels
        self.expand = nn.Sequential(conv(channels, hidden, 1), nn.BatchNorm2d(hidden), nn.SiLU(inplace=True))
        self.depthwise = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden, bias=False)
        self.squeeze, self.excite = nn.Conv2d(hidden, 4, 1), nn.Conv2d(4, hidden, 1)
        self.project = nn.Sequential(conv(hidden, channels, 1), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(self.expand(x))
        y = y * torch.sigmoid(self.excite(F.silu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        y = self.project(y)
        if self.training:
            y = y * torch.empty(y.shape[0], 1, 1, 1, dtype=y.dtype, device=y.device).bernoulli_(0.7) / 0.7
        return x + y


class Next(nn.Module):
    """ConvNeXt's block: channels last, LayerNorm, a scale of its own (Liu et al., 2022)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


class Mixer(nn.Module):
    """MLP-Mixer (Tolstikhin et al., 2021)."""

    def __init__(self, patches: int = 16, width: int = 12) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.tokens = nn.ModuleList(
            nn.Sequential(nn.Linear(patches, 8), nn.GELU(), nn.Linear(8, patches)) for _ in range(2)
        )
        self.channels = nn.Sequential(nn.Linear(width, 24), nn.GELU(), nn.Dropout(0.1), nn.Linear(24, width))
        self.head = nn.Linear(width, 5)  # a name that SplitModel has for something else

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = x + self.tokens[0](self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channels(self.norms[1](x))
        x = x + self.tokens[1](self.norms[2](x).transpose(1, 2)).transpose(1, 2)
        return self.head(x.mean(1))


class ViT(nn.Module):
    """Torch's own encoder layers over patches, a class token and positions (Dosovitskiy et al., 2021)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.cls, self.positions = (
            nn.Parameter(torch.zeros(1, 1, width)),
            nn.Parameter(torch.randn(1, 17, width) * 0.02),
        )
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 32, 0.1, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(x[:, 0])


class Attention(nn.Module):
    def __init__(self, width: int, is_causal: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.drop = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Dropout(0.1)
        self.is_causal = is_causal

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, 2, width // 2).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        scores = q @ k.transpose(-1, -2) / (width // 2) ** 0.5
        if self.is_causal:
            scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1), -1e9)
        if mask is not None:
            scores = scores.masked_fill(mask[:, None, None, :] == 0, -1e9)
        return self.drop(self.out((self.drop(scores.softmax(-1)) @ v).transpose(1, 2).reshape(batch, length, width)))


class Layer(nn.Module):
    def __init__(self, width: int, is_causal: bool) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(width), Attention(width, is_causal), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.Dropout(0.1))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Tokens in, a distribution over the next token at every position out."""

    def __init__(self, width: int = 16, tied: bool = False) -> None:
        super().__init__()
        self.wte, self.wpe, self.drop = nn.Embedding(TOKENS, width), nn.Embedding(CONTEXT, width), nn.Dropout(0.1)
        self.h = nn.ModuleList(Layer(width, is_causal=True) for _ in range(2))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, TOKENS, bias=False)
        if tied:
            self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.drop(self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device)))
        for layer in self.h:
            x = layer(x)
        return self.lm_head(self.ln_f(x))


class Bert(nn.Module):
    """Tokens with a mask that every layer needs."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.register_buffer("ids", torch.arange(CONTEXT))  # persistent, and trained by nobody
        self.words, self.places = nn.Embedding(TOKENS, width), nn.Embedding(CONTEXT, width)
        self.layer = nn.ModuleList(Layer(width, is_causal=False) for _ in range(2))
        self.classifier = nn.Linear(width, 3)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(self.ids)
        for layer in self.layer:
            x = layer(x, mask)
        return self.classifier((x * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True))


class Recurrent(nn.Module):
    """Two layers of LSTM with dropout between them, then a GRU whose time comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, num_layers=2, dropout=0.3, batch_first=True)
        self.gru, self.norm, self.fc = nn.GRU(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.lstm(x)
        x, _ = self.gru(x.transpose(0, 1).contiguous())
        return self.fc(self.norm(x[-1]))


class Temporal(nn.Module):
    """Gated convolutions over time with skips to the end (van den Oord et al., 2016): the sum of skips crosses with x."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Conv1d(4, 8, 1)
        self.gates = nn.ModuleList(nn.Conv1d(8, 16, 2, dilation=2**i, padding=2**i) for i in range(3))
        self.skips = nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in range(3))
        self.end = nn.Sequential(nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Conv1d(8, 5, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.start(x)
        total = torch.zeros_like(x)
        for gate, skip in zip(self.gates, self.skips):
            left, right = gate(x)[..., : x.shape[-1]].chunk(2, dim=1)
            y = torch.tanh(left) * torch.sigmoid(right)
            total += skip(y)
            x = x + y
        return self.end(total).mean(-1)


class Unet(nn.Module):
    """Down and up again with skips across (Ronneberger et al., 2015): an image of numbers comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(conv(3, 6), nn.BatchNorm2d(6), nn.ReLU(inplace=True))
        self.down, self.middle = (
            nn.Sequential(conv(6, 8, stride=2), nn.ReLU()),
            nn.Sequential(conv(8, 8), nn.Dropout2d(0.2)),
        )
        self.up, self.last = nn.ConvTranspose2d(8, 6, 2, 2), nn.Sequential(conv(12, 6), nn.ReLU(), conv(6, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(torch.cat([x, self.up(self.middle(self.down(x)))], 1))


class Table(nn.Module):
    """Vectors; batch statistics without weights, a weight that is normalised, and one that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6, affine=False)
        self.first = nn.utils.parametrizations.weight_norm(nn.Linear(6, 16))
        self.second, self.spare, self.last = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 1)
        self.after = nn.BatchNorm1d(16, momentum=0.3)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += x.shape[0]
        x = F.leaky_relu_(self.first(self.norm(x)), 0.1)
        x = x + F.alpha_dropout(self.after(self.second(x)), 0.1, self.training)
        return self.last(x)


def pictures(make: Callable[[], nn.Module]) -> Callable[[], Made]:
    return lambda: (make(), (torch.zeros(2, 3, 16, 16),), (torch.randn(3, 3, 16, 16),))


def tokens(batch: int) -> Tensor:
    return torch.randint(0, TOKENS, (batch, CONTEXT))


def mask(batch: int) -> Tensor:
    return (torch.arange(CONTEXT) < torch.randint(3, CONTEXT, (batch, 1))).long()


def efficient() -> nn.Module:
    parts = [conv(3, 8, stride=2), nn.BatchNorm2d(8), nn.SiLU(), Squeeze(8), Squeeze(8), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*parts, nn.Flatten(), nn.Dropout(0.2), nn.Linear(8, 5))


def convnext() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 4, 4), Next(8), Next(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    )


def vgg() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 8), (8, 12)):
        layers += [conv(inputs, outputs), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(192, 16), nn.ReLU(True), nn.Dropout(), nn.Linear(16, 5))


ARCHITECTURES: dict[str, Callable[[], Made]] = {
    "resnet": pictures(ResNet),
    "vgg": pictures(vgg),
    "densenet": pictures(DenseNet),
    "inception": pictures(Inception),
    "efficientnet": pictures(efficient),
    "convnext": pictures(convnext),
    "unet": pictures(Unet),
    "mixer": pictures(Mixer),
    "vit": pictures(ViT),
    "gpt": lambda: (GPT(), (tokens(2),), (tokens(3),)),
    "bert": lambda: (Bert(), (tokens(2), mask(2)), (tokens(3), mask(3))),
    "recurrent": lambda: (Recurrent(), (torch.zeros(2, 7, 6),), (torch.randn(3, 7, 6),)),
    "temporal": lambda: (Temporal(), (torch.zeros(2, 4, 12),), (torch.randn(3, 4, 12),)),
    "table": lambda: (Table(), (torch.zeros(2, 6),), (torch.randn(3, 6),)),
}
TWO_CROSS = {"unet", "temporal"}  # some of their cuts are crossed by two tensors
QUICK = ("resnet", "bert", "recurrent", "table")


def make(name: str) -> Made:
    """The module with weights that do not change from call to call."""
    torch.manual_seed(11)
    return ARCHITECTURES[name]()
