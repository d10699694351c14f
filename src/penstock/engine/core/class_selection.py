"""Selects the class and the rate of a consumer's items, from its request and the node's rules, rates and load."""

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


class ItemKind(NamedTuple):
    """The properties of an item that determine its selection. Items of one kind have equal properties."""

    model_id: int
    concerning: frozenset[int]
    """Indices of the node's rules that may apply to the topic."""

    per_second: float
    """The limit of its rate; 0: none."""


class ClassSelection(NamedTuple):
    """The arguments of Distributor.subscribe() and change_class()."""

    cls: int
    served: int
    program: ClassProgram | None
    interval_ns: int


@dataclass(frozen=True, slots=True)
class ConsumerClasses:
    """The classes that a consumer is served, and the rules that apply to it."""

    profile: Profile
    served: frozenset[int]
    name: str
    destination: str
    overrides: ClassMap | None


class ClassSelector:
    """Selects classes for one engine. The rules may be changed while it runs."""

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
        self._plans: dict[int, ConflationPlan] = {}  # by model

    def learn(self, model: MessageModel) -> bool:
        """Use this model for its items. False if the same or a newer version is known."""
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
        """True if these signals may change selections."""
        return self.relief.read(readings, now_ns)

    def consumer_classes(
        self, name: str, destination: str, classes: Iterable[ClassName] | None, overrides: ClassMap | None
    ) -> ConsumerClasses:
        served = self._served if classes is None else self._served & {NUMBERS[each] for each in classes}
        if not served:
            raise LocalProtocolError(f"this node serves none of the classes of consumer {name!r}")
        return ConsumerClasses(
            self._classifier.profile(name, destination, overrides), served, name, destination, overrides
        )

    def renewed(self, consumer: ConsumerClasses) -> ConsumerClasses:
        """The consumer with the current rules."""
        profile = self._classifier.profile(consumer.name, consumer.destination, consumer.overrides)
        return ConsumerClasses(profile, consumer.served, consumer.name, consumer.destination, consumer.overrides)

    def check(self, consumer: ConsumerClasses, requested: ClassWish) -> None:
        if requested != "auto" and NUMBERS[requested] not in consumer.served:
            raise LocalProtocolError(f"this node does not serve the {requested} class")

    def is_nonconflatable(self, model_id: int) -> bool:
        model = self._models.get(model_id)
        return model is None or not self._plan(model).is_conflatable

    def is_logged(self, topic: str, model_id: int, version: int) -> bool:
        """True if updates are logged even while no consumer gets them as critical, so that they can be replayed."""
        model = self._models.get(model_id)
        if model is None or CRITICAL not in self._served:
            return CRITICAL in self._served
        return self._classifier.program(self._anybody, topic, model, version).static_class in (0, CRITICAL)

    def spans(self, model_id: int) -> SpanStore | None:
        """Accumulates withheld updates of the model's items; None if the newest record represents all of them."""
        model = self._models.get(model_id)
        if model is None or not self._plan(model).needs_accumulator:
            return None
        if model_id not in self._spans:
            self._spans[model_id] = SpanStore(self._plan(model), self._spans_max)
        return self._spans[model_id]

    def kind(self, topic: str, model_id: int) -> ItemKind:
        """Return the kind of an item, which is valid until the rules change or a model is learned."""
        model = self._models.get(model_id)
        per_second = self.limits.of_item(topic, "" if model is None else model.name)
        return ItemKind(model_id, self._classifier.rules.concerning(topic), per_second)

    def select(
        self,
        consumer: ConsumerClasses,
        requested: ClassWish,
        per_second: float,
        kind: ItemKind,
        version: int,
        own: Sequence[frozenset[int]] = (),
    ) -> ClassSelection:
        """The selection for items of a kind. `own` are rules of the consumer itself that may apply to them."""
        model = self._models.get(kind.model_id)
        is_conflatable = model is not None and self._plan(model).is_conflatable
        program = None
        if requested != "auto":
            asked = NUMBERS[requested]
        elif model is None:
            asked = int(CRITICAL)
        else:
            rules = consumer.profile.rules((*own, kind.concerning), model.name)
            found = self._classifier.program_of(rules, model, version, is_relieved=self.relief.is_on)
            asked = found.static_class or int(CRITICAL)
            program = None if found.static_class else found
        instead = {cls: nearest(cls, consumer.served, is_conflatable=is_conflatable) for cls in (1, 2, 3)}
        served = sum(cls << 2 * (number - 1) for number, cls in instead.items())
        cls = instead[asked]
        interval = 0
        if is_conflatable and model is not None and (cls == METERED or (program and METERED in instead.values())):
            interval = interval_ns(strictest(per_second, self.limits.per_second_max, kind.per_second))
        return ClassSelection(cls, served, program, interval)
