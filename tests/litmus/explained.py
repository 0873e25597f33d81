from .program import Variant


def reason(variant: Variant) -> str:
    return ""
