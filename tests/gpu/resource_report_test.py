#!/usr/bin/env python3
"""Goal: the resource report sees spills, stacks, missing and forbidden instructions, a wrong order and
kernels without a rule."""
import unittest

import resource_report as report

RESOURCES = """
arch = sm_80
Resource usage:
 Function _ZN4cuda11KernelEntryINS_11EmbedKernelEEEv:
  REG:20 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:392 TEXTURE:0
 Function _ZN4cuda11KernelEntryINS_16CopyBlocksKernelEEEv:
  REG:34 STACK:16 SHARED:0 LOCAL:8 CONSTANT[0]:392 TEXTURE:0
arch = sm_90
 Function _ZN4cuda11KernelEntryINS_11EmbedKernelEEEv:
  REG:22 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:392 TEXTURE:0
"""
SASS = """
arch = sm_80
\tFunction : _ZN4cuda11KernelEntryINS_16CopyBlocksKernelEEEv
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/              @!P0 LDG.E.128 R4, [R2.64] ;
        /*0020*/              @P1 STG.E.64 [R2.64], R4 ;
"""


class ResourceReportTest(unittest.TestCase):
    def test_reads_numbers_by_architecture(self):
        found = report.parse_resources(RESOURCES)
        self.assertEqual(found["sm_80", "_ZN4cuda11KernelEntryINS_16CopyBlocksKernelEEEv"], (34, 16, 8))
        self.assertEqual(found["sm_90", "_ZN4cuda11KernelEntryINS_11EmbedKernelEEEv"], (22, 0, 0))
        self.assertEqual(len(found), 3)

    def test_reads_instructions_with_and_without_predicates(self):
        (instructions,) = report.parse_instructions(SASS).values()
        self.assertEqual(instructions, ["MOV R1, c[0x0][0x28]", "LDG.E.128 R4, [R2.64]", "STG.E.64 [R2.64], R4"])

    def test_expects_hoppers_instructions_of_sm_90a_alone(self):
        symbol = "INS_15WgmmaGemmKernelILi4EEE"
        trap = ["BPT.TRAP", "EXIT"]
        works = ["PREEXIT", "UTMALDG.2D", "ACQBULK", "HGMMA.64x256x16.F32.BF16", "SYNCS.EXCH.64",
                 "REDG.E.ADD.F32.FTZ.RN.STRONG.GPU [R2], R1", "UTMASTG.2D", "UTMACMDFLUSH"]
        self.assertEqual(report.check(report.Kernel("sm_80", symbol, 4, 0, 0, trap)), [])
        self.assertEqual(report.check(report.Kernel("sm_90a", symbol, 168, 0, 0, works)), [])
        self.assertEqual(len(report.check(report.Kernel("sm_90a", symbol, 4, 0, 0, trap))), 9)
        late = [works[0], *works[2:4], works[1], *works[4:]]
        self.assertIn("has None UTMALDG between", report.check(report.Kernel("sm_90a", symbol, 168, 0, 0, late))[0])
        no_wait = [text for text in works if text != "ACQBULK"]
        self.assertIn("has no ACQBULK", report.check(report.Kernel("sm_90a", symbol, 168, 0, 0, no_wait))[0])
        self.assertIn("has no BPT.TRAP", report.check(report.Kernel("sm_90", symbol, 168, 0, 0, works))[0])

    def test_lets_the_kernel_that_is_never_launched_start_late(self):
        self.assertEqual(report.check(report.Kernel("sm_90a", "_11ProbeKernelE", 2, 0, 0, ["EXIT"])), [])
        problems = report.check(report.Kernel("sm_90a", "_11EmbedKernelE", 2, 0, 0, ["EXIT"]))
        self.assertEqual(len(problems), 2)
        self.assertIn("has no ACQBULK", problems[0])

    def test_expects_more_of_some_variants(self):
        works = ["PREEXIT", "ACQBULK", "HGMMA.64x64x16.F32.BF16", "HGMMA.64x128x16.F32.BF16", "UTMALDG.4D", "SYNCS.EXCH.64",
                 "WARPGROUP.DEPBAR.LE gsb0, 0x1", *["MUFU.EX2 R1, R1"] * 34, *["FFMA R1, R1, R2, -R3"] * 32,
                 "WARPGROUP.DEPBAR.LE gsb0, 0x0"]
        narrow, wide = (f"INS_20WgmmaAttentionKernelILi128ELb{wide}EEE" for wide in (1, 0))
        self.assertEqual(report.check(report.Kernel("sm_90a", narrow, 168, 0, 0, works)), [])
        self.assertEqual(len(report.check(report.Kernel("sm_90a", wide, 168, 0, 0, works))), 2)
        works += ["USETMAXREG.TRY_ALLOC.CTAPOOL", "USETMAXREG.DEALLOC.CTAPOOL"]
        self.assertEqual(report.check(report.Kernel("sm_90a", wide, 168, 0, 0, works)), [])
        late = works[:7] + works[-3:-2] + works[7:-3] + works[-2:]
        self.assertIn("has 0 MUFU.EX2 between", report.check(report.Kernel("sm_90a", wide, 168, 0, 0, late))[0])
        scaled_before = [text for text in works if not text.startswith("FFMA")]
        self.assertIn("has 0 FFMA between", report.check(report.Kernel("sm_90a", wide, 168, 0, 0, scaled_before))[0])
        other = "INS_20WgmmaAttentionKernelILi256ELb1EEE"
        self.assertIn("has no HGMMA.64x256x16", report.check(report.Kernel("sm_90a", other, 255, 0, 0, works))[0])

    def test_forbids_slow_instructions(self):
        sample = ["ATOMS.ADD R1, [R2], R3", "SHFL.BFLY PT, R1, R2, R3, R4", "ATOMS.POPC.INC.32 RZ, [R4]"]
        self.assertEqual(report.check(report.Kernel("sm_80", "INS_12SampleKernelEE", 40, 0, 0, sample)), [])
        sample.append("ATOMS.CAST.SPIN.64 R2, [R4], R2, R6")
        (problem,) = report.check(report.Kernel("sm_80", "INS_12SampleKernelEE", 40, 0, 0, sample))
        self.assertIn("loops of compare-and-swap", problem)
        works = ["PREEXIT", "ACQBULK", "HGMMA.64x64x16", "HGMMA.64x256x16", "SYNCS", "UTMALDG.4D", "MUFU.EX2 R1, R1",
                 "WARPGROUP.DEPBAR.LE", "BAR.SYNC.DEFER_BLOCKING 0x1, 0x80"]
        narrow = "INS_20WgmmaAttentionKernelILi256ELb1EEE"
        self.assertEqual(report.check(report.Kernel("sm_90a", narrow, 255, 0, 0, works)), [])
        works.append("BAR.SYNC.DEFER_BLOCKING R4, 0x80")
        self.assertIn("reserves all sixteen", report.check(report.Kernel("sm_90a", narrow, 255, 0, 0, works))[0])

    def test_bounds_how_often_an_instruction_occurs(self):
        symbol = "INS_15WgmmaGemmKernelILi4EEE"
        works = ["PREEXIT", "UTMALDG.2D", "ACQBULK", "HGMMA.64x256x16.F32.BF16", "SYNCS.EXCH.64",
                 "REDG.E.ADD.F32.FTZ.RN.STRONG.GPU [R2], R1", "UTMASTG.2D", "UTMACMDFLUSH",
                 "MEMBAR.ALL.CTA", "MEMBAR.ALL.GPU", "MEMBAR.ALL.GPU"]
        self.assertEqual(report.check(report.Kernel("sm_90a", symbol, 168, 0, 0, works)), [])
        works.append("MEMBAR.ALL.GPU")
        self.assertIn("has 3 times MEMBAR.ALL.GPU", report.check(report.Kernel("sm_90a", symbol, 168, 0, 0, works))[0])

    def test_counts_loads_before_the_exponentials_of_merges(self):
        symbol = "INS_20AttentionMergeKernelILi64EEE"
        load, exponential, store = "LDG.E R1, [R2.64]", "MUFU.EX2 R1, R1", "STG.E.U16 [R2], R4"
        short = ["SHFL.IDX PT, R1, R2, R3, R4", *[load] * 16, exponential, store]
        long = [*[load] * 64, exponential, store]
        self.assertEqual(report.check(report.Kernel("sm_80", symbol, 114, 0, 0, short + long)), [])
        self.assertIn("has 15 LDG.E", report.check(report.Kernel("sm_80", symbol, 114, 0, 0, short[:1] + short[2:] + long))[0])
        self.assertIn("has 63 LDG.E", report.check(report.Kernel("sm_80", symbol, 114, 0, 0, short + long[1:]))[0])

    def test_names_what_is_wrong(self):
        symbol = "_ZN4cuda11KernelEntryINS_16CopyBlocksKernelEEEv"
        instructions = report.parse_instructions(SASS)["sm_80", symbol]
        problems = report.check(report.Kernel("sm_80", symbol, 34, 16, 8, instructions))
        self.assertEqual(len(problems), 2)
        self.assertIn("16 bytes of stack, 8 of local memory", problems[0])
        self.assertIn("has no STG.E.128", problems[1])
        self.assertIn("no rule names this kernel", report.check(report.Kernel("sm_80", "other", 1, 0, 0, []))[0])
        self.assertEqual(report.check(report.Kernel("sm_80", "INS_11EmbedKernelEE", 20, 0, 0, [])), [])
        self.assertEqual(report.Kernel("", "INS_20AttentionMergeKernelILi64", 1, 0, 0, []).name,
                         "AttentionMergeKernel")


if __name__ == "__main__":
    unittest.main()
