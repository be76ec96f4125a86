"""The originals' own interfaces over our environments, for code that was written for them."""

from sched_env.compat.vmagent import VMAgentEnv, VMAgentVecEnv

__all__ = ["VMAgentEnv", "VMAgentVecEnv"]
