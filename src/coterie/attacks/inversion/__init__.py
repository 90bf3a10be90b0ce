"""Pictures from gradients: what an honest-but-curious server can rebuild from one recorded Message (adversary A1).

The default is the worst case for the client: one picture, one step, its exact gradient.
"""

from coterie.attacks.inversion.dlg import dlg as dlg
from coterie.attacks.inversion.idlg import idlg as idlg
from coterie.attacks.inversion.idlg import label_of as label_of
from coterie.attacks.inversion.inverting import inverting as inverting
from coterie.attacks.inversion.matching import Attempt as Attempt
from coterie.attacks.inversion.observed import Observed as Observed
from coterie.attacks.inversion.split import dummy_anchors as dummy_anchors
from coterie.attacks.inversion.split import dummy_decoder as dummy_decoder
from coterie.attacks.inversion.split import free_cotangent as free_cotangent
from coterie.attacks.inversion.split import known_anchors as known_anchors
