"""The command line: its commands and options, and nothing of what they do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

import engine
from app.plan import options
from app.plan.options import Rule, Shape
from app.plan.usage import UsageError
from app.terminal.console import console
from app.terminal.outputs import Outputs
from engine.kernels.registry import DEFAULT_KERNELS

_cli = typer.Typer(
    name="flashscope",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def command_line(words: Sequence[str]) -> int:
    """Follow the words of a command line and return the exit status.

    Raises typer.TyperException or UsageError, with one sentence, where that is not possible.
    """
    return _cli_command.main(args=list(words), prog_name="flashscope", standalone_mode=False) or 0


@_cli.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> int:
    """FlashScope races attention kernels: checked against a float64 reference, timed, and measured in memory.

    Without a command the window opens; FILEs in place of one are opened in it: runs saved by `run --json`, or tensors.
    """
    if version:
        print(f"flashscope {engine.__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())
    return 0


@_cli.command()
def run(
    kernels: Annotated[str, typer.Option(metavar="A,B", help="Kernels to race.")] = ",".join(DEFAULT_KERNELS),
    list_kernels: Annotated[bool, typer.Option("--list-kernels", help="List the kernels and exit.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, an index of `devices`, or part of a name.")] = "auto",
    batch: Annotated[str | None, typer.Option(metavar="SWEEP", help="Batch entries.  [default: 1]")] = None,
    heads: Annotated[str | None, typer.Option(metavar="SWEEP", help="Query heads.  [default: 8]")] = None,
    kv_heads: Annotated[int | None, typer.Option(help="Key and value heads.  [default: as --heads]")] = None,
    seq: Annotated[str | None, typer.Option(metavar="SWEEP", help="Queries.  [default: 1024]")] = None,
    seq_k: Annotated[int | None, typer.Option(help="Keys.  [default: as --seq]")] = None,
    head_dim: Annotated[str | None, typer.Option(metavar="SWEEP", help="Size of a head.  [default: 64]")] = None,
    head_dim_v: Annotated[int | None, typer.Option(help="The same of V.  [default: as --head-dim]")] = None,
    causal: Annotated[
        bool | None, typer.Option("--causal/--no-causal", help="Hide later keys.  [default: no-causal]")
    ] = None,
    window: Annotated[int | None, typer.Option(help="Keys a query sees, itself included; implies causal.")] = None,
    softcap: Annotated[float | None, typer.Option(help="Bound of the scores, by tanh.")] = None,
    scale: Annotated[float | None, typer.Option(help="Factor of the scores.  [default: 1/√head_dim]")] = None,
    dtype: Annotated[str, typer.Option(metavar="f32|f16", help="How tensors are stored.")] = "f32",
    input_file: Annotated[
        str | None,
        typer.Option("--input", metavar="FILE", help="Tensors: .npz, .safetensors or q.npy,k.npy,v.npy, not a shape."),
    ] = None,
    direction: Annotated[
        str, typer.Option(metavar="forward|backward|both", help="The call, its gradients, or a case of each.")
    ] = "forward",
    seed: Annotated[
        int, typer.Option(help="Seed of what is drawn: tensors without --input, and the output's gradient.")
    ] = 0,
    threads: Annotated[
        str | None, typer.Option(metavar="SWEEP", help="Threads of the CPU kernels.  [default: all cores]")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Budget of each kernel in each case.")] = 2.0,
    samples: Annotated[int | None, typer.Option(help="Take so many samples instead.")] = None,
    min_samples: Annotated[int, typer.Option(help="Samples taken before the spread may end it.")] = 10,
    memory_limit: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="What a kernel may hold.  [default: half of the free RAM, 8GiB on a GPU]"),
    ] = None,
    checks: Annotated[bool, typer.Option("--checks/--no-checks", help="Bounds checks of our own shaders.")] = True,
    label: Annotated[str, typer.Option(help="A name for this run in the reports.")] = "",
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report.")] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the whole run, to be reopened.")] = None,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the picture, a PNG.")] = None,
    samples_csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write every raw sample.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> int:
    """Race kernels and print who won.

    A SWEEP is 512, 512,1024, 256..8192*2 or 64..256+64; several sweeps multiply.
    """
    if list_kernels:
        return _list_kernels()
    try:
        outputs = Outputs(csv=csv, samples_csv=samples_csv, json=json, png=png)
        shape = Shape(
            batch=batch, heads=heads, kv_heads=kv_heads, seq=seq, seq_k=seq_k, head_dim=head_dim, head_dim_v=head_dim_v
        )
        rule = Rule(causal=causal, window=window, softcap=softcap, scale=scale, dtype=dtype)
        plan = options.plan(
            kernels=kernels,
            cases=options.cases(shape, rule, input_file, threads, direction),
            device=device,
            seed=seed,
            seconds=seconds,
            samples=samples,
            min_samples=min_samples,
            memory_limit=memory_limit,
            checks=checks,
            label=label,
        )
        outputs.check(options.input_paths(input_file))
        options.check_device(device)
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from error
    from app.terminal.race import race

    return race(plan, outputs, console(quiet=quiet))


@_cli.command()
def devices() -> int:
    """List the devices that kernels can run on."""
    from app.terminal.device_report import print_devices
    from engine.devices.cpu import open_cpu
    from engine.devices.device import DeviceInfo, DeviceUnavailable
    from engine.devices.gpu.device import choose, list_devices

    gpus = list_devices()
    chosen: DeviceInfo | str
    try:
        chosen = choose(gpus, "auto")
    except DeviceUnavailable as error:
        chosen = str(error)
    with open_cpu() as cpu:
        print_devices(console(), gpus, cpu.info, chosen)
    return 0


@_cli.command()
def doctor() -> int:
    """Say what is missing here and what mends it."""
    from app.terminal.device_report import print_checks
    from engine.devices.doctor import doctor as examine

    checks = examine()
    print_checks(console(), checks)
    return int(any(check.status == "missing" for check in checks))


@_cli.command()
def tune(
    device: Annotated[str, typer.Option(help="auto, cpu, an index of `devices`, or part of a name.")] = "auto",
    head_dim: Annotated[str, typer.Option(metavar="SWEEP", help="Sizes of a head.")] = "64",
    causal: Annotated[
        bool | None, typer.Option("--causal/--no-causal", help="Tune for one of both only.  [default: both]")
    ] = None,
    dtype: Annotated[str, typer.Option(metavar="f32|f16", help="How tensors are stored.")] = "f32",
    seconds: Annotated[float, typer.Option(help="Budget of each kernel for each kind of problem.")] = 20.0,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write every variant that was measured.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> int:
    """Find the quickest variant of each kernel on a device and keep it for later runs.

    Every variant is verified before its time counts. Ctrl+C ends early and keeps what was learned.
    """
    try:
        wanted = options.tuning(head_dim, causal, dtype, seconds)
        Outputs(csv=csv).check([])
        options.check_device(device)
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from error
    from app.terminal.tune import tune_device

    return tune_device(device, wanted, csv, console(quiet=quiet))


_cli_command = typer.main.get_command(_cli)


def _list_kernels() -> int:
    from engine.kernels.registry import get_kernel, kernel_names

    for name in kernel_names():
        kernel = get_kernel(name)
        missing = kernel.missing()
        print(f"{name:<16} {kernel.summary}" + (f" ({missing})" if missing else ""))
    return 0
