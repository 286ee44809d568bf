// The names that other systems have for the keys of a recipe, and their keys that mean nothing here.
#pragma once

#include "core/config/spec.h"
#include "trainer/loop/sections.h"

namespace tdock::trainer {

// To be called once all keys of the recipe are bound. Names of keys that it does not have are left out.
//
// verl's sections actor_rollout_ref.actor, .rollout, .ref and .model are ours without actor_rollout_ref, and some keys
// have other names there; in MindSpeed-RL's sections megatron_training, actor_config, rl_config and generate_config
// keys have names of their own, and so they have at the top of a file for TRL or PEFT. Keys that say the same in
// another way are carried over (config::Spec::Derive()). Keys about processes, devices and how they divide a model are
// ignored (config::Spec::Ignore()); keys that would change results and do not exist here are refused
// (config::Spec::Refuse()). The reasons name only keys that the recipe has.
void BindFieldNames(config::Spec& spec);

// Has the values of verl's and MindSpeed-RL's keys about devices, how these divide models and batches, and what must
// fit together, kept in `values` (config::Spec::kept()), which must outlive `spec`. To be called after
// BindFieldNames(); keys that the recipe itself has are left out.
void KeepForeignValues(config::Spec& spec, ForeignValues& values);

}  // namespace tdock::trainer
