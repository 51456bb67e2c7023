"""How good a round's model is: as a whole, and split at the clients' cuts with the codecs of their smashed data in between.

With the operator's test samples the second is the mean over the clients that began the round, each with its cut and codec, as in a
simulation. With the clients' own test samples it is over all their samples, each client's through its own cut and codec; they travel uncoded,
and the main server puts them through the codec, so that both numbers are of the same samples.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from hsfl.models.units import SplitModel
from hsfl.training.codecs.codec import Codec
from hsfl.training.evaluation import Quality, Tally, mean_quality, merge_tallies, quality_of_tallies, through_codec


@dataclass(frozen=True)
class CodecAtCut:
    """A cut, and the codec of smashed data there."""

    cut: int
    codec: Codec

    def applied_to(self, model: SplitModel) -> Callable[[Tensor], Tensor]:
        """The model with the codec between head and tail."""
        return through_codec(model, self.cut, self.codec)


@dataclass(frozen=True)
class Tallies:
    """What a model did on some test samples, without the codec and with it."""

    plain: Tally
    coded: Tally

    @classmethod
    def alike(cls, tally: Tally) -> "Tallies":
        """Where no codec changes anything."""
        return cls(tally, tally)

    def merged(self, other: "Tallies") -> "Tallies":
        return Tallies(merge_tallies((self.plain, other.plain)), merge_tallies((self.coded, other.coded)))


@dataclass(frozen=True)
class Judgement:
    """How good a model is. quality: None where nobody has test samples. coded: None where no smashed data are coded."""

    quality: Quality | None = None
    coded: Quality | None = None

    @classmethod
    def of(cls, tallies: Sequence[Tallies], is_coded: bool) -> "Judgement":
        """From what the model did on the samples of several clients."""
        if not tallies:
            return cls()
        quality = quality_of_tallies([both.plain for both in tallies])
        return cls(quality, quality_of_tallies([both.coded for both in tallies]) if is_coded else None)


def judge(
    test_codecs: Sequence[CodecAtCut | None], quality_with: Callable[[CodecAtCut | None], Quality | None]
) -> Judgement:
    """The model's quality, and its mean over clients with these codecs at their cuts. quality_with: tests the model with a codec, None: without one;
    gives None where smashed data hold a number that no codec can send."""
    qualities = {None: quality_with(None)} | {at: quality_with(at) for at in distinct_codecs(test_codecs)}
    by_client = [quality for at in test_codecs if (quality := qualities[at]) is not None]
    is_coded = any(test_codecs) and len(by_client) == len(test_codecs)
    return Judgement(qualities[None], mean_quality(by_client) if is_coded else None)


def distinct_codecs(test_codecs: Iterable[CodecAtCut | None]) -> list[CodecAtCut]:
    """Each codec at each cut once."""
    return [at for at in dict.fromkeys(test_codecs) if at is not None]
