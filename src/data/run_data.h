// What a training run reads: the samples to train on, and those to validate with.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "data/data_config.h"
#include "data/encode.h"
#include "data/source.h"
#include "text/tokenizer.h"

namespace tdock::data {

// Its sources own what they are made of, except the tokenizer.
struct RunData {
  std::unique_ptr<Source<EncodedSample>> train;
  std::unique_ptr<Source<EncodedSample>> validation;  // null: none is configured
  std::optional<int32_t> reply_end;   // the token that the template ends a reply with; nothing without a template
  std::vector<std::string> warnings;  // a sentence each
};

// The samples of `phase` of data.train_files (or data.path), one file after the other, as often as data.train_weights
// says; and of data.val_files, or the share data.val_share of the training records, which are then not trained on. In
// folders, the files of data.split are read, and for data.val_files those of the split "validation". `log` gets a line
// for each file.
//
// The validation samples are encoded once, and up to 20,000 of the others, for at most 10 seconds, to warn of those
// that are in both; that takes 16 bytes of memory for each validation sample. `tokenizer` is that of `model_folder`,
// and must outlive the result. Errors are those of PhaseSamples::Open(); InvalidArgument for weights and shares that
// leave nothing; FailedPrecondition where no validation sample can be used.
absl::StatusOr<RunData> OpenRunData(
    Env& env, const DataConfig& config, Phase phase, const text::Tokenizer& tokenizer, const std::string& model_folder,
    const DataLog& log = [](const std::string&) {});

}  // namespace tdock::data
