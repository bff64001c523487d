"""Flower's primitives for SecAgg+, which it does not export. Imported where a round has secure sums, and only then."""

from flwr.common.secure_aggregation.crypto.shamir import combine_shares as combine_shares
from flwr.common.secure_aggregation.crypto.shamir import create_shares as create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt as decrypt
from flwr.common.secure_aggregation.crypto.symmetric_encryption import encrypt as encrypt
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key as generate_shared_key
from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_concat as share_keys_plaintext_concat
from flwr.common.secure_aggregation.secaggplus_utils import (
    share_keys_plaintext_separate as share_keys_plaintext_separate,
)
