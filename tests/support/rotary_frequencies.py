"""Transformers' rotary frequencies for scalings that depend on length (see tests/oracle/test_rotary_scaling.py)."""

from __future__ import annotations

from npformer.engine.mechanisms.rotary_scaling import Dynamic, LongRope, Scaling

THETA = 30.0
DYNAMIC = Dynamic(3.0, 8)
LONGROPE = LongRope((1.0, 1.25, 1.5, 2.0), (1.5, 3.0, 6.0, 12.5), 8, 4.0)
#: (Scaling, length of the text) -> the frequencies of heads with 8 columns.
FREQUENCIES: dict[tuple[Scaling, int], tuple[float, ...]] = {
    (DYNAMIC, 8): (1.0, 0.4272870123386383, 0.18257418274879456, 0.07801157981157303),
    (DYNAMIC, 9): (1.0, 0.3842543363571167, 0.14765140414237976, 0.05673569068312645),
    (DYNAMIC, 20): (1.0, 0.24206507205963135, 0.05859550088644028, 0.014183924533426762),
    (LONGROPE, 8): (1.0, 0.3418295979499817, 0.12171611934900284, 0.039005789905786514),
    (LONGROPE, 9): (0.6666666865348816, 0.14242900907993317, 0.03042902983725071, 0.006240926682949066),
}
MAGNITUDE = 1.2909944487358056  # the factor by which LONGROPE scales cosines and sines
