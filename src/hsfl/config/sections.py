"""One frozen tree of settings for a run: every field, its default and what it may be."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from hsfl.config.options import OptionsConfig, Section

MAX_SIDE = 1024  # of an image, in pixels; more than this is a slip of the finger
Side = Annotated[int, Field(ge=1, le=MAX_SIDE)]


OWN_MODEL = "own"  # the name of a model that was given from Python
DEVICES_DATA = "devices' own data"  # the name of the data of a run on real machines whose operator has none
OWN_DATA = "own"  # how the name of a data set begins that was given from Python: own or own:NAME


class ModelConfig(Section):
    """The model: its name, the images it takes, and how it is built."""

    # resnet18, cnn, mlp, vgg11_bn, mobilenet_v2, gpt, vit, hf:PATH (a config of transformers), or a name that a plugin registered
    name: str = "resnet18"
    input: tuple[Side, Side, Side] | None = Field(  # images are resized to it; null keeps the size of the data
        None, description=f"three numbers: channels, height and width, such as [3, 32, 32], at most {MAX_SIDE}"
    )
    norm: Literal["batch", "group", "none"] = (
        "batch"  # group: better on data that differ from client to client; none: of cnn and mlp
    )
    stem: Literal["imagenet", "cifar"] = "imagenet"  # cifar: a first layer that keeps small images large
    dropout: float | None = Field(None, ge=0, lt=1)  # where the model has dropout; null keeps the model's own rate
    init_weights: str | None = None  # a state dict in safetensors
    # How the numbers of an image lie in memory, for every framework and engine alike: contiguous (a plane for each channel) or channels_last
    # (the channels of a pixel side by side). auto is what is quicker for the model: channels_last for cnn and mobilenet_v2
    memory_format: Literal["auto", "contiguous", "channels_last"] = "auto"
    certify: bool = True  # whether a module that is split is compared with its units before the run (docs/models.md)


class DataConfig(Section):
    """The data set, how much of it is used, and how it is divided among the clients."""

    name: str = (
        "digits"  # mnist, cifar10, ham10000, digits, pydoc, idx:PATH, folder:PATH, npz:PATH, csv:PATH, text:PATH
    )
    dir: str | None = None  # null stands for HSFL_DATA, else the user's cache folder
    partition: Literal["iid", "dirichlet", "shards", "quantity_skew", "given"] = "iid"  # given: as the data say
    alpha: float = Field(0.5, gt=0)  # of dirichlet and quantity_skew: small is uneven
    classes_per_client: int = Field(2, ge=1)  # of shards
    min_samples: int = Field(2, ge=1)  # every client gets at least so many training samples
    limit: int | None = Field(None, ge=1)  # training samples, a random subset
    limit_test: int | None = Field(None, ge=1)  # test samples, a random subset
    image_size: int | None = Field(None, ge=8, le=MAX_SIDE)  # images are resized to squares of this side
    split: Literal["lesion", "image"] = "lesion"  # of ham10000: by image leaks lesions into the test set
    augment: Literal["none", "flip_crop"] = "none"  # flip_crop: training images are mirrored and shifted at random
    target_column: str | tuple[str, ...] | None = (
        Field(  # of csv: the column of the class, or the columns of labels or numbers
            None, description='a column ("price"), or a list of columns (["width", "height"])'
        )
    )
    feature_columns: tuple[str, ...] | None = Field(  # of csv; null: all columns but those of class and client
        None, description='a list of columns, such as ["width", "height"]'
    )
    client_column: str | None = None  # of csv: the column that says which client holds a row; never a feature
    client_file: str | None = (
        None  # for partition "given": a line for each training sample, its client's name or number
    )
    test_file: str | None = None  # of csv: the rows to test on; null: a part is held out
    # of csv, text, and npz with x and y; null: 0.2. 0 withholds nothing, for a device that only trains
    test_fraction: float | None = Field(None, ge=0, lt=1)
    block: int | None = Field(None, ge=1, le=2**16)  # of text: tokens in a sample; null: 128
    tokenizer: str | None = None  # of text: a JSON file of the library `tokenizers`; null: every byte is a token
    text_split: Literal["position", "file"] | None = (
        None  # of text: the end of every file is for testing (position, as null), or whole files are
    )
    normalise: bool = False  # of csv and npz: features to mean 0 and std 1 over the training samples; images always are
    sha256: str | None = None  # of data given from Python, filled in by hsfl.run: a run goes on with the same data


class FleetConfig(Section):
    """Who can do what. Ranges are uniform draws, by default the paper's; `file` gives explicit devices instead."""

    num_clients: int = Field(10, ge=1)  # by default the number of devices in the fleet file, where one is given
    seed: int | None = Field(
        None, ge=0
    )  # draws devices and channel, apart from data and weights; null takes the run's seed
    cuts: Literal["auto", "max_cut", "fastest", "planned"] | int | tuple[int, ...] = Field(
        "auto",  # planned; max_cut: as deep as each client can hold; fastest: under the even allocation; planned: the policy's
        description="one cut for all (3), one for each client ([3, 4, 5]), auto, max_cut, fastest or planned",
    )
    one_cut: Annotated[
        Literal["auto", "max_cut", "fastest"] | int, BeforeValidator(lambda cut: "auto" if cut is None else cut)
    ] = Field(
        "auto",  # of frameworks with one cut for all: the smallest of the cuts given, max_cut where fleet.cuts says so, else fastest; max_cut: the smallest of all clients'; fastest: with the shortest mean round of the framework
        description="one cut for all (3), auto, max_cut or fastest",
    )
    max_cut: int | tuple[int, ...] | None = Field(
        None,  # the deepest cut that a client can hold; null: from storage, or drawn for each client in 3..num_units
        description="one for all (5), one for each client ([5, 6, 7])",
    )
    min_cut: int = Field(1, ge=0)  # 0 would send raw data to the main server
    cpu_hz: tuple[float, float] = Field((0.0, 10e10), description="a range of cycles per second, such as [1e9, 5e9]")
    cpu_floor_hz: float = Field(0.05e10, gt=0)  # no device that is drawn is slower
    flops_per_cycle: float = Field(1.0, gt=0)  # of every device that is drawn
    max_power_w: tuple[float, float] = Field((1.0, 10.0), description="a range of watts, such as [1, 10]")  # uplink
    heterogeneity: float = Field(1.0, ge=0, le=1)  # 1: as drawn; 0: all clients equal to the mean
    storage_bits: tuple[float, float] | None = Field(  # memory of a client, from which max_cut follows
        None, description="a range of bits, such as [1e8, 1e9]"
    )
    storage: Literal["training", "parameters"] = "training"  # what must fit into storage_bits or a device's memory
    file: str | None = None  # JSON or TOML: a [[device]] table for each client (docs/fleet.md)


_Bps = float | tuple[float, ...] | None
_BPS = Field(None, description="bits per second for all (5e6), one for each client ([5e6, 1e7])")


class NetworkConfig(Section):
    """The radio (or measured links) and the servers; the defaults are the paper's.

    Measured links need the rates up and down to one server; those to the other server are the same unless given.
    """

    kind: Literal["ofdma", "measured"] = (
        "ofdma"  # ofdma: a radio that clients share; measured: links of known speed, such as Ethernet
    )
    cells: int = Field(1, ge=1, le=10**5)  # each with a radio of its own; all share the main server's cycles
    cells_m: tuple[tuple[float, float], ...] | None = Field(  # null lays the cells out evenly over the disc
        None, description="a place in metres for each cell's antenna, such as [[0, 0], [0, 500]]"
    )
    num_subchannels: int = Field(10, ge=1, le=10**6)  # of the radio of a cell, to each server
    subchannel_hz: float = Field(1e6, gt=0)  # the bandwidth of one subchannel
    noise_w: float = Field(1e-3, gt=0)  # per subchannel
    fading: Literal["normal", "rayleigh"] = (
        "normal"  # of the gain: normal is |h| of h ~ N(0, 1), as the paper has it; rayleigh is exponential with mean 1
    )
    gain_floor: float = Field(0.01, gt=0)  # no gain is smaller, before path loss
    radius_m: float | None = Field(None, gt=0)  # path loss with clients uniform in a disc; null has no path loss
    positions_m: tuple[tuple[float, float], ...] | None = Field(  # where the clients are, for path loss
        None, description="a place in metres for each client, such as [[10, 0], [0, 25]]"
    )
    main_m: tuple[float, float] = Field(
        (0.0, 0.0), description="a place in metres, such as [0, 50]"
    )  # the main server's
    edge_m: tuple[float, float] = Field(
        (0.0, 0.0), description="a place in metres, such as [0, 50]"
    )  # the edge server's
    path_loss_exponent: float = Field(3.0, gt=0)  # how fast a signal fades with distance
    path_loss_db: float = 30.0  # at one metre
    main_up_bps: _Bps = _BPS  # from a client to the main server, where links are measured; null: as to the edge server
    main_down_bps: _Bps = _BPS  # from the main server to a client; null: as from the edge server
    edge_up_bps: _Bps = _BPS  # to the edge server; null: as to the main server
    edge_down_bps: _Bps = _BPS  # from the edge server; null: as from the main server
    delay_s: float | tuple[float, ...] = Field(
        0.0,  # of each message besides its bits, where links are measured; every step of a client sends one and receives one
        description="seconds for all (0.002), one for each client ([0.002, 0.03])",
    )
    main_hz: float = Field(100e10, gt=0)  # cycles per second of the main server, which the clients share
    # shares: each client has a part of the server for the whole round, as in the paper; queue: the server serves one batch at a time, as a
    # deployment's does; auto: queue where links are measured, shares over a radio
    server: Literal["auto", "shares", "queue"] = "auto"
    service: Literal["turns", "longest"] = (
        "turns"  # who of a queue is next: each client in its turn, or the longest way to go
    )
    # between the two servers, each way, for the sums that they swap at the end of a round; null: no time. This and the next six are for
    # measured links to a queue (docs/clock.md)
    swap_bps: float | None = Field(None, gt=0)
    swap_delay_s: float = Field(0.0, ge=0)  # of a message between the servers besides its bits
    open_s: float = Field(0.0, ge=0)  # to plan a round, to open it at both servers and to tell the clients
    average_s: float = Field(
        0.0, ge=0
    )  # to sum what one client trained; of all clients together, so many times as much
    test_s: float = Field(0.0, ge=0)  # of a test, in the rounds that are tested
    checkpoint_s: float = Field(0.0, ge=0)  # to write a round down
    test_beside: int = Field(
        0, ge=0, le=10**6
    )  # batches of a test that the main server makes while the next round trains; 0: it ends the round
    flops_per_cycle: float = Field(1.0, gt=0)  # of the main server
    main_power_w: float = Field(100.0, gt=0)  # with which the main server sends to all clients together
    edge_power_w: float = Field(100.0, gt=0)  # with which the edge server sends to all clients together
    speed_std: float | None = Field(
        None, ge=0, le=10
    )  # of a client's speed from round to round, relative; null: 0.1 over a radio, as in the paper, and 0 on measured links
    history: str | None = None  # CSV or npz of recorded rounds, played back
    sample_scale: float = Field(
        1.0, gt=0, le=1e9
    )  # samples the clock charges for each one trained on, for runs on a subset (data.limit): a run names the value that charges all
    full_batches: bool = False  # charge whole batches; else the samples that there are


class AllocationConfig(Section):
    """Who gets which cycles, subchannels and power, and how `fleet.cuts = "planned"` are found."""

    # even, proposed, rcls, scls, ecfa, gtra, etra, etra_even, splitfed, cpsl; names joined by + change several decisions;
    # own: as published, what each framework's authors chose; auto: proposed where clients have a copy each on the main server, else even
    policy: str = "auto"
    cuts: Literal["descent", "ga", "exhaustive"] = "descent"  # how cuts are searched
    samples: int = Field(20, ge=1)  # rounds that a plan averages over
    sharing: Literal["auto", "exclusive", "bandwidth"] = "auto"  # bandwidth when clients outnumber subchannels
    gap: float = Field(1e-3, gt=0, lt=1)  # proven distance to the optimum at which a round's solve stops
    time_limit_s: float = Field(10.0, gt=0)  # of a round's solve, in real seconds
    plan_time_limit_s: float = Field(60.0, gt=0)  # of the search for cuts
    population: int = Field(50, ge=2)  # of the genetic algorithm
    patience: int = Field(10, ge=1)  # so many generations (ga) or kicks (descent) without improvement end the search


class TrainConfig(Section):
    """How long a run lasts, in rounds or simulated seconds, and how clients train."""

    rounds: int = Field(10, ge=1, le=10**9)  # the run ends after so many, or earlier where budget_s ends it
    budget_s: float | None = Field(None, gt=0)  # simulated; the round that would cross it is not begun
    tau_s: float | None = Field(
        None, gt=0
    )  # a client whose training and upload take longer is dropped from the round; null waits for everyone
    batch_size: int = Field(256, ge=1)  # samples of a mini-batch
    local_epochs: float = Field(
        1.0, gt=0, le=10_000
    )  # passes of a client over its data in a round; 0.2 makes a fifth of its batches, and the next round goes on from there
    optimizer: Literal["sgd", "momentum", "adam"] = "adam"  # of clients and servers
    lr: float = Field(0.001, gt=0)  # the learning rate
    momentum: float = Field(0.9, ge=0, lt=1)  # where the optimizer is `momentum`
    weight_decay: float = Field(0.0, ge=0)  # added to the gradient, times the weight
    schedule: Literal["constant", "cosine", "step"] = "constant"  # of the learning rate over the rounds
    step_rounds: int = Field(10, ge=1)  # where the schedule is `step`: the rate falls after so many rounds
    step_factor: float = Field(0.1, gt=0, le=1)  # where the schedule is `step`: the rate falls to this part of itself
    proximal_mu: float = Field(0.0, ge=0, le=1e6)  # FedProx, for frameworks that train a copy per client
    clip_norm: float | None = Field(
        None, ge=1e-12, le=1e12
    )  # the longest update of a client, by the L2 norm over all weights of head and tail; a longer one is scaled down to it
    average: Literal["mean", "trimmed_mean", "median"] = (
        "mean"  # of the clients' weights: by samples, or number by number and unweighted, which keeps all updates of a round in memory
    )
    trim: float = Field(0.1, gt=0, lt=0.5)  # of trimmed_mean: this part of the clients is left out at either end
    clients_per_round: int | None = Field(None, ge=1)  # null takes all clients
    choose: Literal["uniform", "samples"] = "uniform"  # who takes part: all alike, or drawn by the number of samples
    receivers: Literal["all", "chosen"] = "all"  # who gets the model that a round makes: all, or who was to take part
    drop_rate: float = Field(0.0, ge=0, le=1)  # each client misses a round with this probability
    eval_every: int = Field(1, ge=1)  # the model is tested after every n-th round, and after the last
    norm_statistics: Literal["averaged", "estimated"] = (
        "averaged"  # with which BatchNorm is tested and exported; estimated: clients send batches through the new model, which is charged
    )
    norm_batches: int = Field(4, ge=1)  # that each client sends forward for it
    task: str | None = (
        None  # classification, multi_label, regression, next_token, segmentation, or a name that a plugin registered; null: the data's
    )
    loss: str | None = None  # cross_entropy, pixel_cross_entropy, bce, mse, mae, huber; null: the task's own


class AttackConfig(Section):
    """Simulated clients that do harm: they change what they hold, which is their labels, or the update of their head."""

    kind: Literal["label_flip", "sign_flip", "scaled_update", "noise"] | None = (
        None  # label_flip: labels counted from the other end; sign_flip: the head's update times -scale; scaled_update: times scale; noise: of scale times its size is added
    )
    share: float = Field(0.2, ge=0, le=1)  # of the clients, drawn by the run's seed and rounded to whole clients
    scale: float = Field(1.0, gt=0, le=1e6)  # see kind


def _listed(texts: object) -> object:
    """One text as `--set` gives it, "none,int8", as the list that it means."""
    return [text.strip() for text in texts.split(",")] if isinstance(texts, str) else texts


Texts = Annotated[tuple[str, ...], BeforeValidator(_listed)]


class LinkConfig(Section):
    """The codecs that make messages smaller (docs/codecs.md): none, float16, int8, topk:0.1, or a name that a plugin registered."""

    up: str = "none"  # of smashed data, from a client to the main server
    down: str = "none"  # of their gradients, from the main server to a client
    model: str = "none"  # of trained heads on the way to the edge server, as differences to what was sent down: none, float16, int8
    allowed: Texts = Field(  # of these the planner chooses one for each client, with its cut: "int8" both ways, "topk:0.1/int8" up and down; where it is "none" alone, up and down are everybody's
        ("none",), min_length=1, max_length=16
    )
    codecs: Texts | None = (
        None  # one for each client, written as in allowed, where fleet.cuts gives the cuts; hsfl run --plan sets it
    )
    points: str | None = (
        None  # a CSV file with the columns codec, cut, points: how many points of accuracy each codec was measured to cost
    )
    max_points: float | None = (
        Field(  # the planner leaves out codecs that cost more by points, or were not measured; null leaves out none
            None, ge=0, le=100
        )
    )


class LogConfig(Section):
    """What a run keeps besides its rounds."""

    checkpoint_every: int = Field(1, ge=1)  # a state to go on from, after every n-th round
    model_every: int | None = Field(None, ge=1)  # keep the model of every n-th round in models/; null keeps none
    tensorboard: bool = False  # write events for TensorBoard


class EngineConfig(Section):
    """Where clients are trained. The numbers do not depend on it, to the bit, as long as each process has the same number of threads."""

    name: Literal["auto", "inline", "workers", "ray"] = (
        "auto"  # where clients are trained: inline in this process, by worker processes of this machine, or on a Ray cluster; auto: workers for long runs
    )
    workers: int | None = Field(None, ge=1, le=1024)  # null: one for each core, of this machine or of the cluster
    threads: int | None = Field(
        None, ge=1, le=1024
    )  # of each process that trains; null: 1 with auto (but for long runs of large batches that cannot be spread) and ray, torch's own with inline, the cores divided among workers
    address: str | None = None  # HOST:PORT of a Ray cluster's head node; null: a cluster is started on this machine


class RunConfig(Section):
    """All settings of a run."""

    framework: str = "hsfl"  # cl, fl, sl, splitfed_v1, splitfed_v2, psl, fsl, locfedmix_sl, cpsl, hsfl, or a name that a plugin registered
    seed: int = Field(0, ge=0)  # of data, weights, batches, devices and channel
    device: Literal["cpu", "cuda", "mps"] = "cpu"  # where the models are trained
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    fleet: FleetConfig = FleetConfig()
    network: NetworkConfig = NetworkConfig()
    train: TrainConfig = TrainConfig()
    attack: AttackConfig = AttackConfig()
    allocation: AllocationConfig = AllocationConfig()
    options: OptionsConfig = OptionsConfig()
    link: LinkConfig = LinkConfig()
    log: LogConfig = LogConfig()
    engine: EngineConfig = EngineConfig()
    plugins: tuple[str, ...] = Field(  # files of the user's own; no run folder keeps them
        (), exclude=True, description='a list of Python files, such as ["my_method.py"]'
    )

    @property
    def fleet_seed(self) -> int:
        """The seed that draws the devices and the channel."""
        return self.seed if self.fleet.seed is None else self.fleet.seed

    def named(self) -> list[tuple[str, str]]:
        """The names in the config that a plugin may have registered, as (kind, name)."""
        policies = [("policy", policy) for policy in self.allocation.policy.split("+")]
        data = self.data.name.partition(":")[0]
        task = [] if self.train.task is None else [("task", self.train.task)]
        pairs = (self.link.up, self.link.down, self.link.model, *self.link.allowed, *(self.link.codecs or ()))
        codecs = [("codec", text.partition(":")[0]) for pair in pairs for text in pair.split("/")]
        names = [("framework", self.framework), *policies, ("model", self.model.name), ("data set", data), *task]
        return names + [codec for codec in dict.fromkeys(codecs) if codec != ("codec", "none")]
