"""In which class, and how often, a consumer gets an item: what it asked for, the node's rules, rates and relief."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.base.errors import LocalProtocolError
from penstock.engine.config import EngineConfig
from penstock.engine.control import ClassName, ClassWish
from penstock.engine.core.classes import NUMBERS, Classifier, ClassMap, Profile, nearest
from penstock.engine.core.kernel._classify import ClassProgram
from penstock.engine.core.kernel._conflate import ConflationPlan, SpanStore
from penstock.engine.core.kernel._event import TransmissionClass
from penstock.engine.core.metering_limits import MeteringLimits, interval_ns, strictest
from penstock.engine.core.signals import Readings, Relief, SignalThresholds
from penstock.model import MessageModel

CRITICAL, METERED = TransmissionClass.CRITICAL, TransmissionClass.METERED


class Kind(NamedTuple):
    """What choices look at of an item: those of one kind have the same."""

    model_id: int
    concerning: frozenset[int]
    """Rules of the node that may hold for its topic."""

    per_second: float
    """What its rate is limited to."""


class Choice(NamedTuple):
    """What Distributor.want() is told of a pair."""

    cls: int
    served: int
    program: ClassProgram | None
    interval_ns: int


@dataclass(frozen=True, slots=True)
class Party:
    """A consumer, as rules see it."""

    profile: Profile
    served: frozenset[int]
    name: str
    destination: str
    overrides: ClassMap | None


class Chooser:
    """Of one engine; the rules may be changed while it runs."""

    def __init__(
        self,
        config: EngineConfig,
        limits: MeteringLimits,
        rules: ClassMap,
        signals: SignalThresholds,
        models: Iterable[MessageModel],
    ) -> None:
        self.limits = limits
        self.relief = Relief(signals)
        self._served = frozenset(NUMBERS[name] for name in config.classes)
        self._spans_max = config.pairs_max
        self._spans: dict[int, SpanStore] = {}
        self._classifier = Classifier(rules)
        self._anybody = self._classifier.profile("")
        self._models = {model.id: model for model in models}
        self._plans: dict[int, ConflationPlan] = {}  # by model; asked for with each pair

    def learn(self, model: MessageModel) -> bool:
        """Items of the model are treated as it says. Whether that is new."""
        known = self._models.get(model.id)
        if known is not None and known.version >= model.version:
            return False
        self._models[model.id] = model
        self._plans.pop(model.id, None)
        return True

    def _plan(self, model: MessageModel) -> ConflationPlan:
        if model.id not in self._plans:
            self._plans[model.id] = ConflationPlan.of(model)
        return self._plans[model.id]

    def model(self, model_id: int) -> MessageModel | None:
        return self._models.get(model_id)

    def change(self, rules: ClassMap) -> None:
        self._classifier = Classifier(rules)
        self._anybody = self._classifier.profile("")

    def read(self, readings: Readings, now_ns: int) -> bool:
        """Whether choices may be others with these signals."""
        return self.relief.read(readings, now_ns)

    def party(
        self, name: str, destination: str, classes: Iterable[ClassName] | None, overrides: ClassMap | None
    ) -> Party:
        served = self._served if classes is None else self._served & {NUMBERS[each] for each in classes}
        if not served:
            raise LocalProtocolError(f"none of the classes of consumer {name!r} is served here")
        return Party(self._classifier.profile(name, destination, overrides), served, name, destination, overrides)

    def renewed(self, party: Party) -> Party:
        """The consumer under the rules as they are now."""
        profile = self._classifier.profile(party.name, party.destination, party.overrides)
        return Party(profile, party.served, party.name, party.destination, party.overrides)

    def check(self, party: Party, wish: ClassWish) -> None:
        if wish != "auto" and NUMBERS[wish] not in party.served:
            raise LocalProtocolError(f"this node does not serve the {wish} class")

    def is_nonconflatable(self, model_id: int) -> bool:
        model = self._models.get(model_id)
        return model is None or not self._plan(model).is_conflatable

    def is_logged(self, topic: str, model_id: int, version: int) -> bool:
        """Whether updates are kept even while nobody gets them as critical: those who come back are replayed them."""
        model = self._models.get(model_id)
        if model is None or CRITICAL not in self._served:
            return CRITICAL in self._served
        return self._classifier.program(self._anybody, topic, model, version).static_class in (0, CRITICAL)

    def spans(self, model_id: int) -> SpanStore | None:
        """Where updates of the model's items are put together while they wait, if the newest does not say all."""
        model = self._models.get(model_id)
        if model is None or not self._plan(model).needs_accumulator:
            return None
        if model_id not in self._spans:
            self._spans[model_id] = SpanStore(self._plan(model), self._spans_max)
        return self._spans[model_id]

    def kind(self, topic: str, model_id: int) -> Kind:
        """Good until the rules change, or a model is learned."""
        model = self._models.get(model_id)
        per_second = self.limits.of_item(topic, "" if model is None else model.name)
        return Kind(model_id, self._classifier.rules.concerning(topic), per_second)

    def choice(
        self,
        party: Party,
        wish: ClassWish,
        per_second: float,
        kind: Kind,
        version: int,
        own: Sequence[frozenset[int]] = (),
    ) -> Choice:
        """For items of a kind. Of a party with rules of its own, `own` are those that may hold for them."""
        model = self._models.get(kind.model_id)
        is_conflatable = model is not None and self._plan(model).is_conflatable
        program = None
        if wish != "auto":
            asked = NUMBERS[wish]
        elif model is None:
            asked = int(CRITICAL)
        else:
            rules = party.profile.rules((*own, kind.concerning), model.name)
            found = self._classifier.program_of(rules, model, version, is_relieved=self.relief.is_on)
            asked = found.static_class or int(CRITICAL)
            program = None if found.static_class else found
        instead = {cls: nearest(cls, party.served, is_conflatable=is_conflatable) for cls in (1, 2, 3)}
        served = sum(cls << 2 * (number - 1) for number, cls in instead.items())
        cls = instead[asked]
        interval = 0
        if is_conflatable and model is not None and (cls == METERED or (program and METERED in instead.values())):
            interval = interval_ns(strictest(per_second, self.limits.per_second_max, kind.per_second))
        return Choice(cls, served, program, interval)
