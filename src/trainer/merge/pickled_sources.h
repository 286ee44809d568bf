// Weights in files that PyTorch has pickled. list_pickled.py reads the pickles, in a process of its own, and runs
// nothing that is in them; the numbers are read here.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "trainer/merge/weight_source.h"

namespace tdock::trainer {

// What FSDP has left on each rank: model_world_size_W_rank_R.pt in `folder`, whose names are those of Hugging Face, and
// config.json in `folder`/huggingface, or in `folder`. `python` is the program that runs list_pickled.py. The errors of
// PutRanksTogether(), and InvalidArgument for what cannot be read, with the names of file and tensor.
absl::StatusOr<WeightSource> OpenFsdpShards(Env& env, const std::string& folder, const std::string& python);

// A distributed checkpoint of Megatron (torch_dist), for any number of ranks: `folder`, `folder`/dist_ckpt or
// `folder`/model/dist_ckpt; config.json is in `folder`/huggingface or `folder`/model/huggingface. Llama, Mistral, Qwen2
// and Qwen3. The errors of PutBoxesTogether() and MapMegatron().
absl::StatusOr<WeightSource> OpenMegatronCheckpoint(Env& env, const std::string& folder, const std::string& python);

}  // namespace tdock::trainer
