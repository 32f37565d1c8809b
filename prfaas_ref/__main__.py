"""`python -m prfaas_ref` is `prfaas`."""

import sys

from prfaas_ref.cli import main

sys.exit(main())
