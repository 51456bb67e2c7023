"""How long certificates are still valid, in days: for logs, status and metrics."""

from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from hsfl.deploy.trust.bundle import files_in

DAY_S = 86400.0
SOON_DAYS = 30.0  # a certificate that expires earlier is worth a warning


def expires_soon(days: float | None) -> bool:
    """Whether a certificate with so many days left should be renewed now."""
    return days is not None and days < SOON_DAYS


def days_left(valid_until: datetime | None, moment: datetime | None = None) -> float | None:
    """Days until a certificate expires, negative afterwards; None where there is no certificate. moment: by default this one."""
    if valid_until is None:
        return None
    return (valid_until - (moment or datetime.now(UTC))).total_seconds() / DAY_S


def bundle_days(folder: Path | None) -> float | None:
    """Days until the certificate in a bundle's folder expires, as the file is now; None without TLS, or where it cannot be read."""
    if folder is None:
        return None
    _, certificate, _ = files_in(folder)
    try:
        valid_until = x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    except (OSError, ValueError):
        return None
    return days_left(valid_until)
