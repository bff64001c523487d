"""What server and node must agree on: the names that travel. No Flower, no torch, no NumPy.

Every message is a RecordDict of four records with fixed names:

=========== ============ ================================== ==========================================
record      type         server -> node                     node -> server
=========== ============ ================================== ==========================================
arrays      ArrayRecord  the shared weights                 the shared weights after local training
knowledge   ArrayRecord  what the method shares besides     what the node contributes (prototypes, ...)
config      ConfigRecord ``server-round``, ``run``, ...     answers in words (``domain``, ...)
metrics     MetricRecord                                    ``num-examples``, losses, correct/count
=========== ============ ================================== ==========================================
"""

#: The statistics of ``evaluate.bn``.
AVERAGED, RETAKEN, OWN, BATCH = "averaged", "retaken", "own", "batch"
RAISED = 2  # the code of an error that a node's app tells itself (Flower's CLIENT_APP_RAISED_EXCEPTION)
DECLINED = 100  # likewise where the policy of the node's owner refuses what the server asks for
DISK_FAILED = 101  # likewise of a simulated node that cannot keep its private parts, or read them: the run ends
MACHINE_FAILED = 102  # likewise of a simulated node without memory, or whose process ended: no fault of its own

ARRAYS = "arrays"
KNOWLEDGE = "knowledge"
CONFIG = "config"
METRICS = "metrics"
START = "start"  # a further record, once for each node: what else it begins from (frozen parts)
STATISTICS = "statistics"  # a fifth record, BatchNorm's re-estimated statistics, by state-dict name
COUNTS = "counts"  # a further one of an answer to ``figures``: the arrays of ``fedshift_core.wire.counts``
SITE_FIGURES = "site-figures"  # likewise of an answer to ``site-figures``: those of ``fedshift_core.wire.site_figures``

# --- config, server -> node ---
SERVER_ROUND = "server-round"  # int, from 1
RUN = "run"  # the resolved configuration as JSON
ENGINE = "engine"  # "simulation" or "deployment": whether the node is given its domain or works it out
SIMULATION, DEPLOYMENT = "simulation", "deployment"  # the values of ENGINE
RUN_ID = "run-id"  # 32 hexadecimal digits; a run that is resumed keeps it
RESUMED_AFTER = "resumed-after"  # list of int: after which rounds the run was resumed, absent if it never was
CHOSEN = "chosen"  # list of int: further rounds whose memory the node keeps, absent if there is none
MEMORY_ROUND = "memory-round"  # int: the node must have what it kept in this round, or later; absent if nothing
KEPT_IN = "kept-in"  # folder where simulated nodes keep their private parts, on the machine that they share
START_DIGEST = "start-digest"  # SHA-256 of what the node must begin from (``start``); absent where there is none
NODE_INDEX = "node-index"  # int, the node's place in the order of the federation
DOMAINS = "domains"  # list of str: the domains to evaluate
DRAWN = "drawn"  # list of int, by domain to evaluate: score a sample of so many test images; absent: all
STARTS = "starts"  # list of int, by domain to evaluate: score the (drawn) images from here; absent: all
STOPS = "stops"  # list of int: to here, without it
GAP = (
    "gap"  # list of str, only where it is asked for: send "loss" or "accuracy" on own images of "train" or "validation"
)
CLASS_TOTALS = "class-totals"  # list of float: training images of all nodes by class; absent where each goes by its own
LOCAL_DOMAINS = "local-domains"  # list of str, only in rounds that ask for it: score the locally trained model there
SCALAR = "told/"  # + name: a scalar of the method for this node (int, float or str)
BN_WAYS = "bn-ways"  # list of str: with which statistics of BatchNorm to score, the headline first; absent: averaged
BN_IMAGES = "bn-images"  # int: the most training images behind BatchNorm's statistics of the node's own
TAKE_STATISTICS = "take-statistics"  # True: do not score, send BatchNorm's statistics of training images
FIGURES = "figures"  # True: count how predictions, confidence and scores are spread (record ``counts``); else absent
ASK_SITE_FIGURES = "site-figures"  # True: work out figures of test images with their intervals; else absent
SECURE_STAGE = "secure-stage"  # query: "keys", "shares" or "unmask"
SECURE_PURPOSE = "secure-purpose"  # query: what is summed, "training" or "answers"
SECURE_NODES = "secure-nodes"  # list of int: the nodes of a secure sum
SECURE_KEYS = "secure-keys"  # list of bytes: public keys for encryption; of a node: its own two
SECURE_MASK_KEYS = "secure-mask-keys"  # list of bytes: public keys for masks
SECURE_SIGNED = "secure-signed"  # list of bytes: by node its long-term public key and its signature; of a node: its own
SECURE_STATEMENTS = "secure-statements"  # list of bytes: what each node states of its images; of a node: its own one
SECURE_ALIVE, SECURE_LOST = "secure-alive", "secure-lost"  # lists of int: whose vectors are in the sum, whose are not
SECURE_TEXTS = "secure-texts"  # list of bytes: encrypted shares, one of or for each other node
SECURE_DIGESTS = "secure-digests"  # list of bytes: commitments to shares, two of each
SECURE_SEED = "secure-seed"  # bytes: a node's commitment to its seed
SECURE_REVEALED = "secure-revealed"  # list of bytes: one share of each node
SECURE_SUMS = "secure-sums"  # list of str: how each contribution is a sum, NAME=KIND
SECURE_TERMS = "secure-terms"  # list of str: losses in the sum
MASKED = "masked"  # arrays: the vector of a node with its masks, uint32
SITE_IMAGES = "site-statistics"  # query: True, tell statistics of your images; else True, those of all nodes go along
IMAGE_STYLES = "image-statistics"  # True: means and deviations of single images of all nodes go along
VALIDATION = "validation"  # True, only where nodes keep a validation part: score the weights on it too

# --- answer to a query ---
STATISTICS_KEPT = "statistics-kept"  # config: why the node tells no statistics of its images, "policy" or "few"
STATISTICS_IMAGES = "statistics-images"  # config: training images behind them
STATISTICS_OF = "statistics-of/"  # config: + mean, variance, ...: three numbers, or three rows one after the other
STATISTICS_STYLES = "statistics-styles"  # config: of some images one after the other three means, three deviations
STATISTICS_SIZES, STATISTICS_MODES = "statistics-sizes", "statistics-modes"  # config: of the images' files
STATISTICS_SIZE_COUNTS, STATISTICS_MODE_COUNTS = "statistics-size-counts", "statistics-mode-counts"  # how many of each
DOMAIN = "domain"  # config: the node's domain
PUBLIC = "public"  # config: SHA-256 of the node's copy of the public set; absent where the run's method uses none
NUM_PUBLIC = "num-public"  # metrics: images in it
PARTITION_ID = "partition-id"  # metrics: -1 where the node was given none
NUM_PARTITIONS = "num-partitions"  # metrics: -1 where the node was given none
NUM_TEST = "num-test"  # metrics: test images of the node's own domain; 0: fewer than its owner's least
UNHELD_TEST = "unheld-test/"  # metrics: + domain that no node holds: test images of it that the node sees
HELD_TEST = "held-test/"  # metrics: + each further domain that a real node holds: its test images, as above
SHARED_TEST = "shared-test"  # metrics: 1 if the node sees the whole test set of any domain (simulation)
CLASS_COUNTS = "class-counts"  # metrics: training images per class
FASTEST = "fastest"  # metrics: place in ``ARITHMETICS`` of what trains fastest there; absent where the run says it
NUM_VALIDATION = "num-validation"  # metrics: images of the node's validation part; absent: none

# --- metrics, node -> server ---
NUM_EXAMPLES = "num-examples"
LOSS = "loss"
LOSS_TERM = "loss/"  # + name of the term, which the run declares (``terms`` of a method, of modules)
CE = "ce"  # the term that any method may have without declaring it: cross-entropy
CORRECT = "correct/"  # + domain
COUNT = "count/"  # + domain
LOSS_SUM = "loss-sum/"  # + domain: cross-entropy summed over the images
OTHER_CORRECT = "other-correct/"  # + name of another way to score, which the run declares, + / + domain
BN_SCORE = "bn="  # + way: what a score with other statistics of BatchNorm is called among these
LOCAL_CORRECT = "local-correct/"  # + domain
LOCAL_COUNT = "local-count/"  # + domain
LOCAL_OWN_CORRECT = "local-own-correct"  # on the node's own test set, where that is a part of its domain's
LOCAL_OWN_COUNT = "local-own-count"
ASK_LOSS = "ask-loss"  # score the weights as they come on the node's training images
RECEIVED_LOSS = "received-loss"  # the answer to ``ask-loss``: a mean
LOCAL_RECEIVED = "local-received"  # the answer to ``gap`` of the weights as they came
LOCAL_TRAINED = "local-trained"  # and of those that local training left
VALIDATION_CORRECT = "validation-correct"  # on the node's own validation part; absent where it has none
VALIDATION_COUNT = "validation-count"
VALIDATION_LOSS_SUM = "validation-loss-sum"  # cross-entropy summed over it; absent if it is not finite
CONFUSION, CLASSES = "confusion/", "classes/"  # counts: + domain; one of them, see ``fedshift_core.wire.counts``
CALIBRATION, CLASS_SCORES = "calibration/", "scores/"  # counts: + domain
SITE_NUMBERS, SITE_MARKS, SITE_COUNTS = "numbers/", "marks/", "images/"  # site-figures: + domain
EPSILON = "epsilon"  # what the node has spent in the run so far, with privacy.name=dp-sgd; else absent
KEPT = "kept"  # 1 if the node keeps private arrays of this round's training; else absent
WITHHELD = "withheld"  # 1 if the node's owner lets out less than the run asks for; else absent
STARTED_ANEW = "started-anew"  # 1 if what the server says the node must have kept is gone; else absent
SECONDS = "seconds/"  # + part of the node's work, of ``WORK``; only where the run measures its time
WORK = ("data", "forward/backward", "prototypes", "messages", "evaluation")  # see ``fedshift_clients.training.phases``
BN_MEAN, BN_VAR = "running_mean", "running_var"  # of a BatchNorm layer, in PyTorch's state dict
BN_SUM, BN_SQUARES = "sum/", "squares/"  # knowledge: + BatchNorm layer: over images, of means over a channel's map
PROCESS = "process"  # the number of the process that did it, with ``SECONDS``
CLASSIFIER = "classifier."  # how the names of a head's weights start in the model
HEAD, HEADS = "head/", "heads/"  # knowledge: + name without it; a head, several one after another along the first axis
