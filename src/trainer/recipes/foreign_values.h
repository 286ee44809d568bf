// The numbers of verl and MindSpeed-RL that mean nothing to a run here, but are checked with its own.
#pragma once

#include "core/config/spec.h"
#include "trainer/loop/sections.h"

namespace tdock::trainer {

// Has the values of their keys about devices, how these divide models and batches, and what must fit together, kept in
// `values` (config::Spec::kept()), which must outlive `spec`. To be called after BindFieldNames(); keys that the recipe
// itself has are left out.
void KeepForeignValues(config::Spec& spec, ForeignValues& values);

}  // namespace tdock::trainer
