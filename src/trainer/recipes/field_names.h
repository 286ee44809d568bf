// The names that verl and MindSpeed-RL have for the keys of a recipe, and their keys that mean nothing here.
#pragma once

#include "core/config/spec.h"

namespace tdock::trainer {

// To be called once all keys of the recipe are bound. Names of keys that it does not have are left out.
//
// verl's sections actor_rollout_ref.actor, .rollout, .ref and .model are ours without actor_rollout_ref, and a few keys
// have other names there; in MindSpeed-RL's sections megatron_training, actor_config, rl_config and generate_config
// keys have names of their own. What such a file says about processes, devices and how they divide a model is ignored
// (config::Spec::Ignore()); what would change results and does not exist here is refused (config::Spec::Refuse()).
void BindFieldNames(config::Spec& spec);

}  // namespace tdock::trainer
