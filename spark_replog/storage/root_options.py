"""Which storage options are meant for which root: of all, of one kind of storage, or of one place."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from spark_replog.errors import ErrorCode, InvalidConfigError


def options_of_root(
    url: str, storage_options: Mapping[str, str], schemes: Collection[str], aliases: Mapping[str, str]
) -> dict[str, str]:
    """Return the options of one root without their scope.

    ``NAME`` is for every root, ``SCHEME.NAME`` for roots of that scheme, ``URL.NAME`` for the root at that URL
    and those below it. The narrower scope wins, of two URLs the longer. Case does not count in a scope: Spark
    hands option names over in lower case.

    Args:
        url: normalised root URL.
        storage_options: as the user gave them, without the ``storage.`` prefix.
        schemes: that take options.
        aliases: other names of these.

    Raises:
        InvalidConfigError: REPLOG_INVALID_OPTION: a scope that is no scheme of these, or no URL of one.
    """
    ranked: list[tuple[int, str, str]] = []
    for key, value in storage_options.items():
        scope, _, name = key.rpartition(".")
        scheme, mark, rest = scope.lower().rstrip("/").partition("://")
        scheme = aliases.get(scheme, scheme)
        if scope and (not name or scheme not in schemes or (mark and not rest)):
            raise InvalidConfigError(
                ErrorCode.REPLOG_INVALID_OPTION,
                f"storage.{key}: '{scope}' is no kind of storage. Write storage.NAME for all roots, "
                f"storage.SCHEME.NAME for those of one scheme ({', '.join(schemes)}), or "
                "storage.SCHEME://PLACE.NAME for one root.",
            )
        if _is_meant(url.lower(), scheme, f"{scheme}{mark}{rest}" if mark else ""):
            ranked.append((len(scope) and 1 + len(rest), name, value))
    return {name: value for _, name, value in sorted(ranked, key=lambda each: each[0])}


def _is_meant(url: str, scheme: str, place: str) -> bool:
    if place:
        return url == place or url.startswith(f"{place}/")
    return not scheme or url.startswith(f"{scheme}://")


__all__ = ["options_of_root"]
