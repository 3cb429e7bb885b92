"""The check of device code finds what it looks for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
import device_code


@pytest.mark.parametrize(
    "line",
    [
        "        /*0210*/                   RED.E.ADD.F32.FTZ.RN.STRONG.GPU [R2.64], R5 ;",
        "        /*0210*/                   REDG.E.ADD.F32.FTZ.RN.STRONG.GPU desc[UR4][R2.64], R5 ;",
        "        /*01a0*/                   ATOMG.E.ADD.F16x2.RN.STRONG.GPU PT, R0, desc[UR4][R2.64], R5 ;",
        "        /*01a0*/                   ATOM.E.ADD.F64.RN.STRONG.GPU PT, R0, [R2.64], R4 ;",
        "        /*0300*/                   REDG.E.ADD.BF16_V2.RN.STRONG.GPU desc[UR4][R2.64], R5 ;",
    ],
)
def test_floating_point_atomics_are_found(line: str) -> None:
    assert device_code.FLOAT_ATOMIC.search(line)


@pytest.mark.parametrize(
    "line",
    [
        "        /*0210*/                   REDG.E.ADD.STRONG.GPU desc[UR4][R2.64], R5 ;",
        "        /*0210*/                   ATOMG.E.ADD.STRONG.GPU PT, R0, desc[UR4][R2.64], R5 ;",
        "        /*0210*/                   ATOMS.POPC.INC.32 RZ, [R5] ;",
        "        /*0210*/                   FADD.FTZ R5, R5, R2 ;",
        "        /*0210*/                   REDUX.SUM UR4, R2 ;",
    ],
)
def test_others_are_let_pass(line: str) -> None:
    assert not device_code.FLOAT_ATOMIC.search(line)


def test_libraries_of_vendors_are_found() -> None:
    assert device_code.VENDOR.search("libcublasLt.so.13")
    assert device_code.VENDOR.search("libcudnn.so.9")
    assert not device_code.VENDOR.search("libcudart_static")
    assert not device_code.VENDOR.search("libblublas.so.0")


def test_without_wheels_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert device_code.main([]) == 2
    assert "nox -s gpu" in capsys.readouterr().err
