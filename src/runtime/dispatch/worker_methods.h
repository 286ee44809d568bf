// The methods of verl's workers, dispatched as verl dispatches them.
#pragma once

#include <string>

#include "runtime/dispatch/dispatch.h"
#include "runtime/dispatch/method.h"
#include "tdock/meta_batch.h"

namespace tdock::runtime {

// Groups have a mesh for each role that they play: "actor", "rollout", "ref", "critic", "reward".
inline constexpr char kActorMesh[] = "actor";
inline constexpr char kRolloutMesh[] = "rollout";
inline constexpr char kRefMesh[] = "ref";
inline constexpr char kCriticMesh[] = "critic";
inline constexpr char kRewardMesh[] = "reward";

// Makes the model that the worker was configured with. Every rank takes part.
inline constexpr Method<void()> kInitModel{"init_model", Mode::kOneToAll};

// Prompts to answers.
inline constexpr Method<MetaBatch(MetaBatch)> kGenerateSequences{"generate_sequences", NdMesh(kRolloutMesh)};

// The columns that each computes for every row.
inline constexpr Method<MetaBatch(MetaBatch)> kComputeLogProb{"compute_log_prob", NdMesh(kActorMesh)};
inline constexpr Method<MetaBatch(MetaBatch)> kComputeRefLogProb{"compute_ref_log_prob", NdMesh(kRefMesh)};
inline constexpr Method<MetaBatch(MetaBatch)> kComputeValues{"compute_values", NdMesh(kCriticMesh)};
inline constexpr Method<MetaBatch(MetaBatch)> kComputeRmScore{"compute_rm_score", NdMesh(kRewardMesh)};

// Train on every row. The result has no columns, and the figures of each data-parallel rank in its meta "metrics".
inline constexpr Method<MetaBatch(MetaBatch)> kUpdateCritic{"update_critic", NdMesh(kCriticMesh)};
inline constexpr Method<MetaBatch(MetaBatch)> kUpdateActor{"update_actor", NdMesh(kActorMesh)};

// To or from a folder that every rank can reach; of a given step.
inline constexpr Method<void(std::string, int64_t)> kSaveCheckpoint{"save_checkpoint", Mode::kOneToAll};
inline constexpr Method<void(std::string)> kLoadCheckpoint{"load_checkpoint", Mode::kOneToAll};

}  // namespace tdock::runtime
