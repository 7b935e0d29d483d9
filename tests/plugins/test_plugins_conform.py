"""Every plug-in that ships passes the conformance class of its door."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tiers import examples

from algorithms.admission.hived import HiveDGuarantees
from algorithms.admission.kai import Kai
from algorithms.admission.kueue import Kueue
from algorithms.admission.slurm_multifactor import SlurmMultifactor
from algorithms.admission.volcano import Volcano
from algorithms.allocation.count_programme import CountProgramme, LinkAware, SurvivalAware
from algorithms.allocation.elastic_scaling import ElasticScaling
from algorithms.allocation.gavel import Gavel
from algorithms.allocation.malletrain import MalleTrain
from algorithms.allocation.node_milp import NodeMilp
from algorithms.allocation.rubick import Rubick
from algorithms.allocation.sharing import NodeEqualShare
from algorithms.allocation.sia import Sia
from algorithms.allocation.tiresias import PreemptiveTiresias
from algorithms.collective.direct import Direct
from algorithms.collective.double_binary_tree import DoubleBinaryTree
from algorithms.collective.halving_doubling import HalvingDoubling
from algorithms.collective.hierarchical import Hierarchical
from algorithms.collective.in_network import InNetwork
from algorithms.collective.nccl import Nccl
from algorithms.collective.ring import Ring
from algorithms.communication.adadual import AdaDual
from algorithms.communication.bounded_overlap import BoundedOverlap
from algorithms.communication.cassini import Cassini
from algorithms.communication.preemptive import PreemptiveShortestFirst
from algorithms.contention.crux import Crux
from algorithms.ordering.fifo import FirstInFirstOut
from algorithms.ordering.history import QuasiShortestServiceFirst, ShortByHistory
from algorithms.ordering.make_room import MakeRoom
from algorithms.ordering.monkeytree import MonkeyTreeOrder
from algorithms.ordering.narrow_first import NarrowFirst
from algorithms.ordering.srsf import ShortestRemainingServiceFirst
from algorithms.ordering.srtf import ShortestRemainingTimeFirst, StoppingShortestRemainingTimeFirst
from algorithms.ordering.themis import FinishTimeFairness
from algorithms.ordering.tiresias import LeastAttainedService, StoppingTiresias, Tiresias
from algorithms.path.crux import CruxPaths
from algorithms.path.ecmp import Ecmp, Sglb, TopologyRoute
from algorithms.path.least_congested import LeastCongested
from algorithms.path.perfect import PerfectRouting
from algorithms.placement.arnold import Arnold
from algorithms.placement.backfilling import EasyBackfill, InOrder
from algorithms.placement.blocks import AlignedBlocks
from algorithms.placement.cassini import CassiniPlacement
from algorithms.placement.conservative_backfill import ConservativeBackfill
from algorithms.placement.delay import DelayScheduling
from algorithms.placement.first_fit import FirstFit, ListScheduling
from algorithms.placement.hived import HiveD
from algorithms.placement.kueue_topology import KueueTopology
from algorithms.placement.learned_start import LearnedStart
from algorithms.placement.lucid import Lucid
from algorithms.placement.lwf import LeastWorkloadFirst
from algorithms.placement.monkeytree import MonkeyTreePlacement
from algorithms.placement.muri import Muri
from algorithms.placement.near_enough import NearEnough
from algorithms.placement.random_fit import RandomFit
from algorithms.placement.sjf_bsbf import BestSharingBenefitFirst
from algorithms.placement.slurm_backfill import SlurmBackfill
from algorithms.placement.volcano_hypernodes import VolcanoHyperNodes
from algorithms.placement.whole_servers import WholeRacks, WholeServers
from ddlsched.cluster.interference import UniformInterference
from ddlsched.network.contention import EqualShare, Linear, MaxMin
from ddlsched.network.weighted_shares import ConnectionShares, Mltcp, SizeShares, StrictLevels
from ddlsched.testing import (
    AdmissionConformance,
    AllocationConformance,
    CollectiveConformance,
    CommunicationConformance,
    ContentionConformance,
    InterferenceConformance,
    OrderingConformance,
    PathConformance,
    PlacementConformance,
    TopologyConformance,
    conformance_runs,
    network_conformance,
    policy_conformance,
)
from topologies.clos import Clos
from topologies.double_sided import DoubleSided
from topologies.fat_tree import FatTree
from topologies.leaf_spine import LeafSpine
from topologies.lingjun import Lingjun
from topologies.monkeytree import MonkeyTree
from topologies.rail_optimised import RailOptimised
from topologies.star import Star

pytestmark = [pytest.mark.drawn, pytest.mark.long]


@pytest.fixture(autouse=True, scope="module")
def _seeds() -> Iterator[None]:
    seeds = range(examples(len(conformance_runs.SEEDS), by_default=1))
    with pytest.MonkeyPatch.context() as patch:
        for module in (conformance_runs, network_conformance, policy_conformance):
            patch.setattr(module, "SEEDS", seeds)
        yield


def conformance(base: type, plugin: object) -> type:
    """Return the conformance class of a door for one plug-in."""
    return type(f"Test{type(plugin).__name__}", (base,), {"make": lambda self: plugin})


TestRing = conformance(CollectiveConformance, Ring())
TestHierarchical = conformance(CollectiveConformance, Hierarchical())
TestDirect = conformance(CollectiveConformance, Direct())
TestNccl = conformance(CollectiveConformance, Nccl(switches="all"))
TestDoubleBinaryTree = conformance(CollectiveConformance, DoubleBinaryTree())
TestNvlsTree = conformance(CollectiveConformance, DoubleBinaryTree(port_share=0.7))
TestHalvingDoubling = conformance(CollectiveConformance, HalvingDoubling())
TestInNetwork = conformance(CollectiveConformance, InNetwork())
TestFirstFit = conformance(PlacementConformance, FirstFit())
TestListScheduling = conformance(PlacementConformance, ListScheduling())
TestKueueTopology = conformance(PlacementConformance, KueueTopology())
TestVolcanoHyperNodes = conformance(PlacementConformance, VolcanoHyperNodes())
TestLwf1 = conformance(PlacementConformance, LeastWorkloadFirst(kappa=1))
TestLwf4 = conformance(PlacementConformance, LeastWorkloadFirst(kappa=4))
TestBlocks = conformance(PlacementConformance, AlignedBlocks())
TestBlocksAnywhere = conformance(PlacementConformance, AlignedBlocks(aligned=False, spanning_weight=1.0, price="load"))
TestDelay = conformance(PlacementConformance, DelayScheduling())
TestSjfBsbf = conformance(PlacementConformance, BestSharingBenefitFirst())
TestInOrder = conformance(PlacementConformance, InOrder())
TestInOrderDelay = conformance(PlacementConformance, InOrder(placement=DelayScheduling(server_s=1.0)))
TestLearnedStart = conformance(PlacementConformance, LearnedStart())
TestEasyBackfill = conformance(PlacementConformance, EasyBackfill(error_sigma=0.5))
TestEasyBackfillLwf = conformance(PlacementConformance, EasyBackfill(placement="lwf:kappa=1", error_sigma=0.0))
TestEasyBackfillDelay = conformance(PlacementConformance, EasyBackfill(placement=DelayScheduling(), error_sigma=0.5))
TestSlurmBackfill = conformance(PlacementConformance, SlurmBackfill(error_sigma=0.5, resolution_s=1.0))
TestConservativeBackfill = conformance(PlacementConformance, ConservativeBackfill(error_sigma=0.5))
TestRandomFit = conformance(PlacementConformance, RandomFit())
TestCassiniPlacement = conformance(PlacementConformance, CassiniPlacement())
TestHiveD = conformance(PlacementConformance, HiveD())
TestMonkeyTree = conformance(PlacementConformance, MonkeyTreePlacement(gpus_per_rack=4, block_gpus=1, spines=1))
TestMuri = conformance(PlacementConformance, Muri())
TestLucid = conformance(PlacementConformance, Lucid())
TestArnold = conformance(PlacementConformance, Arnold(servers_per_pod=2))
TestNearEnough = conformance(PlacementConformance, NearEnough(slower=0.5))
TestWholeRacks = conformance(PlacementConformance, WholeRacks(servers_per_rack=2, rings_up=1))
TestWholeServers = conformance(PlacementConformance, WholeServers(servers_per_rack=2))

TestEcmp = conformance(PathConformance, Ecmp())
TestLeastCongested = conformance(PathConformance, LeastCongested())
TestCruxPaths = conformance(PathConformance, CruxPaths())
TestPerfectRouting = conformance(PathConformance, PerfectRouting())
TestSglb = conformance(PathConformance, Sglb())
TestTopologyRoute = conformance(PathConformance, TopologyRoute())

TestFifo = conformance(OrderingConformance, FirstInFirstOut())
TestLas = conformance(OrderingConformance, LeastAttainedService())
TestSrsf = conformance(OrderingConformance, ShortestRemainingServiceFirst())
TestSrsfCommunication = conformance(OrderingConformance, ShortestRemainingServiceFirst(communication=True))
TestNarrowFirst = conformance(OrderingConformance, NarrowFirst())
TestHistory = conformance(OrderingConformance, ShortByHistory())
TestMakeRoom = conformance(OrderingConformance, MakeRoom(least_run_s=1.0, long_s=2.0))
TestQssf = conformance(OrderingConformance, QuasiShortestServiceFirst())
TestThemis = conformance(OrderingConformance, FinishTimeFairness())
TestTiresias = conformance(OrderingConformance, Tiresias())
TestSrtfCommunication = conformance(OrderingConformance, ShortestRemainingTimeFirst(communication=True))
TestStoppingSrtf = conformance(OrderingConformance, StoppingShortestRemainingTimeFirst())
TestStoppingTiresias = conformance(OrderingConformance, StoppingTiresias(threshold_gpu_s=2.0, interval_s=1.0))
TestMonkeyTreeOrder = conformance(OrderingConformance, MonkeyTreeOrder(gpus_per_rack=4, block_gpus=2, spines=1))
TestSrtf = conformance(OrderingConformance, ShortestRemainingTimeFirst())

TestAdaDual = conformance(CommunicationConformance, AdaDual())
TestBoundedOverlap1 = conformance(CommunicationConformance, BoundedOverlap(limit=1))
TestBoundedOverlap3 = conformance(CommunicationConformance, BoundedOverlap(limit=3))
TestPreemptiveByBytes = conformance(CommunicationConformance, PreemptiveShortestFirst(by="bytes"))
TestPreemptiveByService = conformance(CommunicationConformance, PreemptiveShortestFirst(by="service"))
TestPreemptiveByTime = conformance(CommunicationConformance, PreemptiveShortestFirst(by="time"))
TestPreemptiveByServicePerGpu = conformance(CommunicationConformance, PreemptiveShortestFirst())
TestCassini = conformance(CommunicationConformance, Cassini())

TestCountProgramme = conformance(AllocationConformance, CountProgramme(lookahead_s=120.0))
TestNodeMilp = conformance(AllocationConformance, NodeMilp(lookahead_s=120.0, most_jobs=2))
TestLinkAware = conformance(AllocationConformance, LinkAware(lookahead_s=120.0))
TestNodeEqualShare = conformance(AllocationConformance, NodeEqualShare(most_jobs=2))
TestSurvivalAware = conformance(AllocationConformance, SurvivalAware())
TestMalleTrain = conformance(AllocationConformance, MalleTrain())
TestPreemptiveTiresias = conformance(AllocationConformance, PreemptiveTiresias(threshold_gpu_s=200.0))
TestGavel = conformance(AllocationConformance, Gavel(round_s=100.0))
TestSia = conformance(AllocationConformance, Sia(round_s=50.0))
TestRubick = conformance(AllocationConformance, Rubick(round_s=100.0))
TestElasticScaling = conformance(AllocationConformance, ElasticScaling(interval_s=100.0))
TestElasticScalingQueue = conformance(AllocationConformance, ElasticScaling(interval_s=60.0, queue=True, most_gpus=3))
TestSmallestBatch = conformance(AllocationConformance, ElasticScaling(interval_s=100.0, batch="min", queue=True))
TestLargestBatch = conformance(AllocationConformance, ElasticScaling(interval_s=100.0, batch="max"))
TestRandomBatch = conformance(AllocationConformance, ElasticScaling(interval_s=100.0, batch="random", queue=True))

TestLinear = conformance(ContentionConformance, Linear())
TestLinearWithLatency = conformance(ContentionConformance, Linear(latency_s=6.69e-4))
TestEqualShare = conformance(ContentionConformance, EqualShare())
TestMaxMin = conformance(ContentionConformance, MaxMin())
TestMltcp = conformance(ContentionConformance, Mltcp())
TestSizeShares = conformance(ContentionConformance, SizeShares(chunk_bytes=1e6, chunk_s=1e-3))
TestConnectionShares = conformance(ContentionConformance, ConnectionShares(step_s=1e-4, loss=0.03))
TestStrictLevels = conformance(ContentionConformance, StrictLevels())
TestStrictLevelsByBytes = conformance(
    ContentionConformance, StrictLevels(by="bytes-sent", first=1e6, levels=4, message_parts=4)
)
TestCrux = conformance(ContentionConformance, Crux(levels=2))
TestUniformInterference = conformance(InterferenceConformance, UniformInterference())

TestStar = conformance(TopologyConformance, Star())
TestLeafSpine = conformance(TopologyConformance, LeafSpine())
TestOversubscribedLeafSpine = conformance(
    TopologyConformance, LeafSpine(servers_per_leaf=3, spines=3, oversubscription=4)
)
TestFatTree = conformance(TopologyConformance, FatTree())
TestOversubscribedFatTree = conformance(TopologyConformance, FatTree(k=6, oversubscription=4))
TestClos = conformance(TopologyConformance, Clos(servers_per_rack=2, racks_per_pod=2, aggregations=2, cores=3))
TestOversubscribedClos = conformance(
    TopologyConformance, Clos(servers_per_rack=3, racks_per_pod=2, rack_oversubscription=2, pod_oversubscription=4)
)
TestRailOptimised = conformance(TopologyConformance, RailOptimised(hosts_per_unit=4, oversubscription=2))
TestRailClos = conformance(TopologyConformance, RailOptimised(hosts_per_unit=2, units_per_pod=2, cores=3))
TestDoubleSided = conformance(TopologyConformance, DoubleSided())
TestMonkeyTree = conformance(TopologyConformance, MonkeyTree(servers_per_rack=4))
TestLingjun = conformance(TopologyConformance, Lingjun(group_oversubscription=3))
TestKueue = conformance(AdmissionConformance, Kueue())
TestKueueFairSharing = conformance(AdmissionConformance, Kueue(fair_sharing=True, usage_half_life_s=600.0))
TestVolcanoProportion = conformance(AdmissionConformance, Volcano())
TestVolcanoCapacity = conformance(AdmissionConformance, Volcano(plugin="capacity"))
TestVolcanoDrf = conformance(AdmissionConformance, Volcano(plugin="drf"))
TestKai = conformance(AdmissionConformance, Kai(usage_weight=1.0))
TestSlurmMultifactor = conformance(AdmissionConformance, SlurmMultifactor())
TestHiveDGuarantees = conformance(AdmissionConformance, HiveDGuarantees())
