"""Each domain has the same weight, and within it each node."""

from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.federation.updates import Update


class EqualDomains(DomainStrategy):
    def weights(self, updates: list[Update]) -> list[float]:
        domains = [update.node.domain for update in updates]
        return [1 / (len(set(domains)) * domains.count(domain)) for domain in domains]
