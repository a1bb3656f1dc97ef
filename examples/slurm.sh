#!/bin/bash
# A sweep that outlives its time limit: Slurm sends SIGTERM five minutes before the end, slo-bench keeps what is
# measured, the job goes back into the queue, and the next start resumes.
#
#     sbatch --export=ALL,MODEL=Qwen/Qwen3-30B-A3B-FP8,LABEL=moe-default examples/slurm.sh
#
# Where nodes have no network, the accuracy gate needs its items: SLO_BENCH_GSM8K_FILE=FILE, or SLO_BENCH_GATE=none.
#SBATCH --job-name=slo-bench
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=8
#SBATCH --time=02:00:00
#SBATCH --signal=B:TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

model=${MODEL:-Qwen/Qwen3-30B-A3B-FP8}
label=${LABEL:-slurm}
runs=${RUNS:-$PWD/runs}

resume=()
if [[ -e $runs/$label/run.json ]]; then
    resume=(--resume)
fi
# The trap stands before the sweep does: a signal between the two must not end the job without its answer.
stopped=0 sweep=
trap 'stopped=1; [[ -z $sweep ]] || kill -TERM "$sweep" || true' TERM
slo-bench sweep --model "$model" --label "$label" --runs-dir "$runs" "${resume[@]}" &
sweep=$!
if [[ $stopped == 1 ]]; then
    kill -TERM "$sweep" || true
fi

code=0
wait "$sweep" || code=$?
while kill -0 "$sweep" 2>/dev/null; do # the trap ends `wait`, not the sweep, which still stops its server
    code=0
    wait "$sweep" || code=$?
done

if [[ $code == 143 ]]; then
    scontrol requeue "$SLURM_JOB_ID"
elif [[ $code == 0 || $code == 5 ]]; then
    slo-bench report "$runs/$label" --output "$runs/$label/note.md"
fi
exit "$code"
