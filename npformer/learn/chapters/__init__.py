"""The course: six chapters of exercises, in the order in which they build on each other."""

from npformer.learn.chapters.attention_gradients import ATTENTION_BACKWARD
from npformer.learn.chapters.attention_of_heads import ATTENTION, CAUSAL_MASK
from npformer.learn.chapters.classifier import CLASSIFY, POOL
from npformer.learn.chapters.decoder_steps import DECODER_STEP
from npformer.learn.chapters.decoder_with_cache import DECODER_LAYER
from npformer.learn.chapters.encoder_blocks import FEED_FORWARD, MULTI_HEAD
from npformer.learn.chapters.encoder_stack import ENCODER, ENCODER_LAYER
from npformer.learn.chapters.first_steps import EMBEDDINGS, LAYER_NORM
from npformer.learn.chapters.gelu_and_linear import GELU, LINEAR
from npformer.learn.chapters.gradients import CROSS_ENTROPY, LINEAR_BACKWARD, SOFTMAX_BACKWARD
from npformer.learn.chapters.more_gradients import LAYER_NORM_BACKWARD
from npformer.learn.chapters.sampling import GELU_TANH, SAMPLE
from npformer.learn.chapters.softmax_and_heads import COMBINE_HEADS, SOFTMAX, SPLIT_HEADS
from npformer.learn.chapters.whole_gradient import LOSS_AND_GRADIENTS
from npformer.learn.exercise import Chapter

CHAPTERS = (
    Chapter("From words to rows", (EMBEDDINGS, LAYER_NORM, GELU, LINEAR)),
    Chapter("Attention", (SOFTMAX, SPLIT_HEADS, COMBINE_HEADS, ATTENTION, CAUSAL_MASK)),
    Chapter("The encoder", (MULTI_HEAD, FEED_FORWARD, ENCODER_LAYER, ENCODER)),
    Chapter("An answer", (POOL, CLASSIFY)),
    Chapter(
        "Learning",
        (CROSS_ENTROPY, LINEAR_BACKWARD, SOFTMAX_BACKWARD, LAYER_NORM_BACKWARD, ATTENTION_BACKWARD, LOSS_AND_GRADIENTS),
    ),
    Chapter("Writing", (GELU_TANH, DECODER_LAYER, DECODER_STEP, SAMPLE)),
)
EXERCISES = {exercise.name: exercise for chapter in CHAPTERS for exercise in chapter.exercises}
