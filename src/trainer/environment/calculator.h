// A calculator to solve problems with, and what else is built in.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/environment/environment.h"
#include "trainer/environment/environment_config.h"

namespace tdock::environment {

// "calculator".
std::vector<std::string> BuiltInNames();

// NotFound, with the names, for another one.
//
// The calculator evaluates with Evaluate() of arithmetic.h. With TurnFormat::kChat it is the tool
// calculator(expression), with kText what a message ends with between brackets: after "[37*24]" it says "888". Any
// other message is the final one, whose last number is compared with that of EpisodeRow::truth: the reward "correct" is
// 1 if they are the same, else 0.
absl::StatusOr<std::unique_ptr<Environment>> MakeBuiltInEnvironment(const std::string& name, TurnFormat format);

}  // namespace tdock::environment
