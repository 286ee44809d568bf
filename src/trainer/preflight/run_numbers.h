// The numbers of a configuration that must fit together, and the checks of them: pure functions.
//
// The formulas are those of verl (its config validation and the normalisation in its workers) and of MindSpeed-RL
// (validate_config.py); where the two differ, that is said.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/preflight/findings.h"

namespace tdock::trainer {

// A number, and the key that gives it as a user writes it; more than one key with ", " between them.
struct Setting {
  int64_t value = 0;
  std::string key = {};  // empty: nothing gives it

  bool operator==(const Setting&) const = default;
};

// One model of a run, on its devices: tensor·pipeline·context of them hold one copy of it.
struct RoleNumbers {
  std::string role = "actor";  // "actor", "critic", "ref", "rollout" or "reward"
  Setting devices = {.value = 1};
  Setting tensor = {.value = 1}, pipeline = {.value = 1}, context = {.value = 1};
  Setting mini_batch = {};   // prompts of an optimizer step; 0: all of a batch, or the role is not trained
  Setting micro_batch = {};  // samples of a pass on a device; 0: as many as fit
  Setting all_micro = {};    // the same over all devices, an older way to say it; 0: not given
  bool dynamic = false;      // passes are cut by tokens, and micro-batches do not act
  Setting max_tokens = {};   // of a pass on a device, if dynamic

  bool is_divided() const { return !(devices.key + tensor.key + pipeline.key + context.key).empty(); }
  int64_t replica() const { return tensor.value * pipeline.value * context.value; }
  // Copies, which share a batch; 0 if the devices do not divide into copies.
  int64_t data_parallel() const { return devices.value % replica() == 0 ? devices.value / replica() : 0; }
};

// How many samples of a batch a stage of MindSpeed-RL takes at a time.
struct DispatchSize {
  std::string name;   // "actor_rollout"
  Setting size = {};  // 0: the default, all that one of its ranks gets
  int64_t ranks = 1;
  bool groups = false;            // it takes whole prompt groups
  Setting at_least_prompts = {};  // and at least this many prompts / ranks, if it is given
};

struct RunNumbers {
  Setting prompts = {.value = 1};  // of a batch
  Setting samples_per_prompt = {.value = 1};
  Setting generated_prompts = {};       // of a batch that is generated; 0: the same
  bool filters_groups = false;          // batches are generated until there are enough prompts to train on
  Setting most_rounds = {};             // of them; 0: no limit
  std::vector<RoleNumbers> roles = {};  // the actor first
  bool whole_groups = false;            // a rank has all samples of its prompts, as in MindSpeed-RL
  std::vector<DispatchSize> dispatch_sizes = {};

  Setting longest = {.value = 1};                    // sequence, in tokens
  Setting prompt_length = {}, response_length = {};  // its parts; 0: it has none
  Setting max_model_len = {}, context_length = {};   // of the engine; 0: not given
  bool leaves_last_position = false;                 // answers end one position before it
  Setting sequence_length = {};                      // of the trainer; 0: not given
  int64_t heads = 0, layers = 0, positions = 0;      // of the model; 0: not known

  Setting steps = {}, epochs = {};  // 0: not given
  Setting overlong_buffer = {};     // tokens; 0: not used
  Setting verifiers = {}, verifier_weights = {};
  Setting experts = {}, expert_groups = {};  // of a mixture, and those that its router has; 0: not given
  bool has_clip = false;
  double clip_low = 0, clip_high = 0;
  bool validation_samples = false;  // rollout.val_kwargs.do_sample
  double validation_temperature = 0;
};

// Every number that follows, and every violation. Positive values are expected where 0 has no meaning, and values below
// 2^20 (tokens: 2^40), so that products fit in 64 bits.
NumberReport CheckRunNumbers(const RunNumbers& numbers);

}  // namespace tdock::trainer
