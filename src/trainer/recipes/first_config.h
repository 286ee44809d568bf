// A configuration to begin with.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "data/data_config.h"

namespace tdock::trainer {

struct FirstConfigOptions {
  std::string recipe;
  std::string model;                 // a folder
  std::string data;                  // a file or a folder
  std::string environment = {};      // a name that is built in, FILE.py:NAME or a URL; empty: none
  std::string reward_function = {};  // FILE.py:NAME; empty: none
};

// A commented configuration of the recipe that trains the model on the data, and runs as it is: with the form that the
// data were recognised as, turns and a template where the model has one or the data need one, lengths that fit both,
// and for recipes that answer prompts the rule for numbers where the right answers are numbers. `log` gets a sentence
// for each choice that another reading of the data would change.
//
// InvalidArgument for an unknown recipe, for data without right answers where neither a function nor an
// environment that is not built in gives the rewards, and for options that the recipe does not take; other errors
// come from reading the tokenizer, config.json and the data. Reads up to 1,000 samples, and no weights.
absl::StatusOr<std::string> FirstConfig(
    Env& env, const FirstConfigOptions& options, const data::DataLog& log = [](const std::string&) {});

}  // namespace tdock::trainer
