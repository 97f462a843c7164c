"""The vocabulary of the generated papers: facets, their values, and several forms of every value.

A facet is one aspect of a paper (its domain, its task, ...). Every value has several forms that share few
words, like terms of different schools of one field. A paper uses one form and a request uses one form, so a
search by words finds only some of the relevant papers. Names of data sets are made of syllables. Words of the
tiny graph are one token in the tiny models' vocabulary, at the start of a text and after a space; their usual
meaning is irrelevant there.
"""

from __future__ import annotations

import random

from stepwell.envs.paper_search.papers.graph import Facet

DOMAINS = """
retinal images|fundus photographs|ophthalmic scans
river networks|catchment hydrology|streamflow basins
protein folding|polypeptide structure|residue conformations
legal contracts|court agreements|statutory clauses
urban traffic|city road flows|metropolitan mobility
satellite imagery|orbital remote sensing|overhead earth observation
electronic health records|clinical notes|hospital charts
source code|software repositories|program text
news articles|press reports|journalistic stories
bird song|avian acoustics|warbler vocalisations
battery cells|lithium accumulators|electrochemical storage
power grids|transmission networks|electricity distribution
wheat fields|cereal crops|grain agriculture
ocean currents|marine circulation|sea water transport
stellar spectra|starlight dispersion|astronomical emission lines
financial markets|stock exchanges|asset trading
customer reviews|buyer opinions|consumer feedback
chemical reactions|molecular synthesis|reagent transformations
robot arms|manipulator joints|mechanical grippers
surgical videos|operating room footage|laparoscopic recordings
spoken dialogue|conversational speech|voice conversations
ancient manuscripts|historical handwriting|medieval scripts
wind turbines|rotor farms|aeolian generators
brain recordings|cortical signals|electroencephalograms
genome sequences|nucleotide strings|chromosomal reads
social networks|online communities|friendship graphs
point clouds|lidar sweeps|depth returns
music scores|symbolic melodies|notated compositions
mathematical proofs|theorem derivations|formal lemmas
seismic waves|earthquake tremors|ground motion traces
wireless channels|radio links|antenna propagation
supply chains|logistics pipelines|goods procurement
student essays|pupil writing|classroom compositions
crystal lattices|solid state structures|periodic materials
malware binaries|hostile executables|intrusive payloads
product catalogues|retail inventories|merchandise listings
sign language|manual gestures|deaf communication
coral reefs|benthic habitats|undersea colonies
patent documents|invention filings|intellectual property claims
pedestrian crowds|walking multitudes|foot passenger streams
"""
TASKS = """
segmentation|region delineation|area partitioning
classification|categorisation|label assignment
forecasting|anticipation|future estimation
anomaly detection|outlier discovery|novelty spotting
retrieval|item lookup|content search
clustering|unsupervised grouping|cohort formation
summarisation|condensation|digest writing
question answering|reply finding|inquiry resolution
causal discovery|intervention analysis|cause identification
compression|size reduction|compact coding
super resolution|detail enhancement|upsampling
imputation|gap filling|missing value repair
alignment|registration|correspondence matching
generation|synthesis by sampling|content creation
ranking|preference ordering|priority sorting
tracking|trajectory following|identity linking
simulation|surrogate modelling|digital twins
planning|decision sequencing|course selection
entity linking|mention grounding|name disambiguation
relation extraction|link mining|association harvesting
denoising|noise removal|artefact suppression
uncertainty estimation|confidence calibration|error bar inference
change detection|drift monitoring|shift recognition
optimal design|configuration search|layout tuning
"""
METHODS = """
graph neural networks|message passing models|relational encoders
attention transformers|token mixing architectures|self attentive stacks
gaussian processes|kriging regressors|covariance kernels
diffusion models|score based samplers|iterative noising chains
contrastive learning|positive pair pretraining|instance discrimination
reinforcement learning|reward driven control|trial and error policies
variational autoencoders|latent bottleneck inference|amortised posteriors
decision forests|bagged trees|random split ensembles
sparse coding|dictionary atoms|basis pursuit
federated averaging|on device aggregation|decentralised updates
knowledge distillation|teacher student transfer|soft target imitation
normalising flows|invertible maps|change of variables densities
convolutional networks|filter banks|translation equivariant layers
recurrent networks|gated memory cells|sequential hidden states
tensor decomposition|multilinear factorisation|low rank unfolding
markov chain monte carlo|metropolis sampling|posterior random walks
evolutionary search|genetic mutation|population heuristics
prompted language models|instruction templates|in context demonstrations
physics informed networks|equation residual training|conservation constrained learning
hidden markov models|state emission chains|viterbi decoding
spectral methods|eigenvector embeddings|laplacian projections
support vector machines|maximum margin separators|hinge loss kernels
active learning|query selection|label acquisition strategies
meta learning|learning to learn|fast adaptation
mixture of experts|gated specialists|routed subnetworks
neural operators|function space mappings|resolution free solvers
integer programming|branch and bound|combinatorial relaxation
optimal transport|wasserstein couplings|earth mover plans
adversarial training|minimax games|discriminator feedback
bayesian optimisation|acquisition functions|surrogate guided trials
topological analysis|persistent homology|barcode descriptors
symbolic regression|expression discovery|formula induction
kalman filtering|recursive state estimates|linear gaussian updates
hashing|binary codes|bucketed sketches
boosted trees|gradient boosting|additive stumps
capsule networks|pose agreement routing|part whole hierarchies
wavelet analysis|multiscale transforms|dyadic decompositions
tree search|lookahead rollouts|branching exploration
curriculum learning|easy first schedules|staged difficulty
retrieval augmentation|memory lookups|evidence conditioned decoding
"""
SETTINGS = """
few labels|scarce supervision|low annotation budgets
noisy annotations|corrupted targets|unreliable ground truth
streaming data|online arrival|continual ingestion
domain shift|distribution change|unseen environments
limited memory|embedded hardware|edge devices
privacy constraints|confidential records|secrecy requirements
class imbalance|long tails|rare categories
multiple modalities|heterogeneous sensors|cross modal inputs
adversarial attacks|malicious perturbations|hostile inputs
real time operation|low latency|millisecond budgets
interpretability|human readable explanations|transparent reasoning
fairness|demographic parity|bias mitigation
very large scale|billions of items|massive corpora
small samples|handful of observations|tiny cohorts
missing observations|incomplete measurements|partial views
multiple languages|cross lingual transfer|polyglot users
long horizons|distant dependencies|extended contexts
open worlds|unknown classes|emerging categories
simulated to real|sim transfer|virtual to physical gap
energy efficiency|low power|carbon aware computing
expert feedback|human in the loop|interactive correction
hierarchical structure|nested taxonomies|tree organised labels
irregular sampling|uneven intervals|asynchronous readings
worst case guarantees|certified bounds|provable safety
"""
TINY_WORDS = """
ab action ag al answer ar back buy ch click close co di direction done down drop east en end error find
forward go he id ke le left li look low me move name north number object on one open other out pick pl press
pull push put qu ra re result ri right room scroll se side south st state stop string take text th title
to tool turn tw type up use user value wait west word zer
"""
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
NUM_DATASETS = 200


def make_full_facets(seed: int) -> tuple[Facet, ...]:
    """Domain, task, method, setting and data set of the full graph."""
    written = {"domain": DOMAINS, "task": TASKS, "method": METHODS, "setting": SETTINGS}
    facets = [Facet(name, _read_forms(text)) for name, text in written.items()]
    return (*facets, Facet("dataset", _draw_dataset_name(random.Random(f"{seed}:datasets"))))


def make_tiny_facets(seed: int, num_values: int = 13, num_forms: int = 2) -> tuple[Facet, ...]:
    """Three facets whose values are single words; no word has two meanings."""
    rng = random.Random(f"{seed}:tiny words")
    drawn = iter(rng.sample(TINY_WORDS.split(), 3 * num_values * num_forms))
    return tuple(
        Facet(name, tuple(tuple(next(drawn) for _ in range(num_forms)) for _ in range(num_values)))
        for name in ("domain", "task", "method")
    )


def _read_forms(text: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(line.split("|")) for line in text.strip().splitlines())


def _draw_dataset_name(rng: random.Random) -> tuple[tuple[str, ...], ...]:
    """A name of three syllables, and a code: `Veltura`, `KRN-40`."""
    names: dict[str, str] = {}
    while len(names) < NUM_DATASETS:
        name = "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(3)) + rng.choice("nrsx")
        code = "".join(rng.choice(CONSONANTS) for _ in range(4)).upper() + f"-{rng.randrange(10, 100)}"
        if name.capitalize() not in names and code not in names.values():
            names[name.capitalize()] = code
    return tuple(names.items())
