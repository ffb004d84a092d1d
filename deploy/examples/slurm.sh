#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
# A training job on SLURM. All processes of the job share a cache on each node, by SLURM_JOB_ID, and the nodes give chunks to each other.
set -euo pipefail
export DIESEL_SERVER=https://10.0.0.5:7420,https://10.0.0.6:7420
export DIESEL_CA=/etc/diesel/ca.pem
export DIESEL_USER=$USER
DIESEL_KEY=$(cat "$HOME/.diesel.key")
export DIESEL_KEY
# Memory of the cache on each node; the default is half of the free memory.
export DIESEL_AGENT_MEMORY=200GiB

srun torchrun --nnodes="$SLURM_NNODES" --nproc-per-node=8 --rdzv-backend=c10d \
    --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -1):29500" \
    train.py dl://imagenet/train
