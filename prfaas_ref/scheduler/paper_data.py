"""The numbers that the paper prints, and the model shapes behind them. Data only.

Everything here is `stated` by arXiv 2604.15039 (v2), except the byte counts of the published models and of the internal
model: those are derived from public configs and from the paper's own table 5, as each says.
"""

from prfaas_ref.scheduler.lengths import LogNormalLengths
from prfaas_ref.scheduler.profile import DecodeProfile, KvSize
from prfaas_ref.units import KIB, gbps

# Section 4.1, the case study. GPUs come in instances of 8.
WORKLOAD = LogNormalLengths(mu=9.90, sigma=1.00, low=128, high=131072)
OUTPUT_TOKENS = 1024
DECODE_SLO_TOKENS_PER_S = 40
LINK_BITS_PER_S = gbps(100)
N_PRFAAS, N_PD, N_HOMOGENEOUS = 4, 8, 12
GPUS_PER_INSTANCE = 8

# Table 5, the internal 1T model on 8 x H200: tokens, S_kv in MiB, T_prefill in seconds, Phi_kv in Gbps. The lengths are
# printed as 1K, 8K, 32K and 128K; read with K = 1000 the latencies lie on one quadratic.
TABLE5 = (
    (1000, 190.8, 0.44, 3.61),
    (8000, 308.9, 0.72, 3.59),
    (32000, 701.3, 1.84, 3.19),
    (128000, 2316.3, 7.40, 2.62),
)

# The sizes of table 5 lie on one line if measured at these lengths. Slope: 15 MLA layers of 512 + 64 bf16. Intercept:
# 42 KDA layers of 64 heads x 128 x 128 fp32 and 3 x 24576 bf16 of convolution window. Derived, not stated.
TABLE5_SIZE_LENGTHS = (1024, 8192, 32000, 130000)
INTERNAL_MODEL = KvSize(15 * (512 + 64) * 2, 42 * (64 * 128 * 128 * 4 + 3 * 24576 * 2))

# Decode: 3.91 requests/s from five instances is one number, BS_max / T_decode = 800.6 tokens/s; only the ratio shows.
DECODE = DecodeProfile(batch_max=20, step_s=0.02498)

TABLE3_LENGTHS = (1 * KIB, 8 * KIB, 32 * KIB, 128 * KIB)
TABLE3_GBPS = {
    "Kimi Linear": (1.19, 2.29, 3.87, 4.88),
    "MiMo-V2-Flash": (0.82, 2.85, 4.66, 4.71),
    "Qwen3.5-397B": (4.13, 6.28, 8.25, 7.47),
    "Ring-2.5-1T": (7.27, 4.47, 2.59, 1.46),
    "MiniMax-M2.5": (4.94, 32.87, 59.93, 47.82),
    "Qwen3-235B": (4.12, 22.42, 33.35, 21.50),
}
DENSE = ("MiniMax-M2.5", "Qwen3-235B")

# Derived from the models' public configs: bf16 KV, fp32 recurrent state, bf16 windows, each KV head once.
MODEL_BYTES = {
    "Kimi Linear": KvSize(7 * (512 + 64) * 2, 20 * (32 * 128 * 128 * 4 + 3 * 12288 * 2)),
    "MiMo-V2-Flash": KvSize(9 * 4 * (192 + 128) * 2, 39 * 8 * (192 + 128) * 2 * 128),
    "Qwen3.5-397B": KvSize(15 * 2 * 2 * 256 * 2, 45 * (64 * 128 * 128 * 4 + 3 * (2 * 16 + 64) * 128 * 2)),
    "Ring-2.5-1T": KvSize(10 * (512 + 64) * 2, 70 * 64 * 128 * 128 * 4),
    "MiniMax-M2.5": KvSize(62 * 2 * 8 * 128 * 2),
    "Qwen3-235B": KvSize(94 * 2 * 4 * 128 * 2),
}

# Table 6. t in tokens (decimal), instances, TTFT in seconds, throughputs in requests/s; None is a dash.
TABLE6 = {
    "prfaas-pd": {
        "t": 19400, "N_p": 3, "N_d": 5, "mean_ttft_s": 2.22, "p90_ttft_s": 3.51,
        "theta_prfaas": 1.61, "theta_pd_p": 1.64, "theta_pd_d": 3.91, "lambda_max": 3.24,
    },
    "homogeneous": {
        "N_p": 9, "N_d": 3, "mean_ttft_s": 4.44, "p90_ttft_s": 9.73,
        "theta_pd_p": 2.11, "theta_pd_d": 2.35, "lambda_max": 2.11,
    },
    "naive": {"mean_ttft_s": 1.74, "p90_ttft_s": 3.51, "theta_prfaas": 2.45, "theta_pd_d": 6.25, "lambda_max": 2.45},
}  # fmt: skip
OFFLOADED_PERCENT = 49.6
L_LONG_TOKENS = 44 * KIB
EGRESS_GBPS = 13
HEADLINE = {
    "throughput over homogeneous, %": 54,
    "throughput over naive, %": 32,
    "mean TTFT against homogeneous, %": -50,
    "P90 TTFT against homogeneous, %": -64,
    "throughput over homogeneous at equal cost, %": 15,
}
# Section 2.3: what 512 H200 emit at 32K, and 10,000 GPUs at 128K, in Gbps.
EGRESS_512_GBPS = {"MiniMax-M2.5": 3800, "Qwen3-235B": 2100, "Ring-2.5-1T": 170}
EGRESS_10K_GBPS = {"Ring-2.5-1T": 1800}
RING_SAVINGS = {"MLA": 4.5, "7:1": 8, "together": 36}
