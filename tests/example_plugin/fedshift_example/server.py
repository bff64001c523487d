"""Each domain has the same weight, and within it each node."""

from strategies.base import DomainStrategy
from strategies.federation.updates import Update


class EqualDomains(DomainStrategy):
    """FedAvg with equal weights by domain."""

    def weights(self, updates: list[Update]) -> list[float]:
        """Return 1 / (domains x nodes of the domain) for each update."""
        domains = [update.node.domain for update in updates]
        return [1 / (len(set(domains)) * domains.count(domain)) for domain in domains]
