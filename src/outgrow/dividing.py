"""What does `outgrow partition` do? It says how a step would be divided among workers. Nothing is run or allocated."""

from time import perf_counter

from outgrow.commands import Job
from outgrow.frontends.dataflow import workload_dataflow
from outgrow.frontends.loading import load_workload_function
from outgrow.planning.partition import partition
from outgrow.report.division import division_of, told
from outgrow.report.output import write_data
from outgrow.report.progress import Narrator


def divide(job: Job, workers: int, narrator: Narrator) -> None:
    """Tell what each worker would hold and receive."""
    narrator.stage("capture")
    step = workload_dataflow(load_workload_function(job.workload), job.settings)
    narrator.stage("divide")
    begin = perf_counter()
    found = partition(step, workers)
    division = division_of(job.workload, step, found, perf_counter() - begin)
    narrator.say(told(division, step, found.levels))
    write_data(job.outputs.json, division.to_data())
