"""Attention as layers: multi-head on a GPU or the CPU, and of single vectors on the CPU with a choice of block size."""

from __future__ import annotations

from engine.layers.cpu_flash_attention import BenchmarkResult, CpuFlashAttention, CpuFlashAttentionConfig
from engine.layers.flash_attention import FlashAttention, FlashAttentionGrads, LayerMemory
from engine.layers.memory import MemoryEstimate

__all__ = [
    "BenchmarkResult",
    "CpuFlashAttention",
    "CpuFlashAttentionConfig",
    "FlashAttention",
    "FlashAttentionGrads",
    "LayerMemory",
    "MemoryEstimate",
]
