"""Placement groups, custom resources and scheduling strategies."""
# mypy: ignore-errors

import ray
from ray.util.placement_group import (
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)


@ray.remote(num_cpus=1)
class Worker:
    def where(self):
        group = ray.util.get_current_placement_group()
        return ray.get_runtime_context().get_node_id(), group is not None


@ray.remote(num_cpus=1)
def child():
    return ray.util.get_current_placement_group() is not None


@ray.remote(num_cpus=1)
def parent():
    return ray.get(child.remote())


ray.init(num_cpus=4, resources={"special": 2})
assert ray.cluster_resources()["special"] == 2
group = placement_group([{"CPU": 1}, {"CPU": 1, "special": 1}], strategy="PACK")
ray.get(group.ready(), timeout=20)
assert group.wait(5) and len(group.bundle_specs) == 2
strategy = PlacementGroupSchedulingStrategy(
    placement_group=group, placement_group_bundle_index=0
)
worker = Worker.options(scheduling_strategy=strategy).remote()
node, inside = ray.get(worker.where.remote())
assert inside
ray.kill(worker)
captured = PlacementGroupSchedulingStrategy(
    placement_group=group, placement_group_capture_child_tasks=True
)
assert ray.get(parent.options(scheduling_strategy=captured).remote(), timeout=20)
assert placement_group_table(group)["state"] == "CREATED"
remove_placement_group(group)

here = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
worker = Worker.options(scheduling_strategy=here).remote()
assert ray.get(worker.where.remote()) == (node, False)
spread = [child.options(scheduling_strategy="SPREAD").remote() for _ in range(4)]
assert ray.get(spread) == [False] * 4
special = child.options(resources={"special": 1}, num_cpus=0).remote()
assert ray.get(special) is False
print("done")
