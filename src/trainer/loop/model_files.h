// The model of a run as files.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/base/env.h"
#include "model/decoder/decoder.h"
#include "text/tokenizer.h"
#include "trainer/loop/sections.h"

namespace tdock::trainer {

// Saves for use: in model.save_dtype, or the dtype that config.json gave the model, with adapters merged into it, which
// are also in FOLDER/adapter; and the tokenizer.
absl::Status SaveForUse(Env& env, const std::string& folder, const model::Decoder& decoder,
                        const text::Tokenizer& tokenizer, const ModelSection& section);

// To go on from: bit for bit. With adapters, these alone, in the PEFT layout; and the tokenizer.
absl::Status SaveToGoOn(Env& env, const std::string& folder, const model::Decoder& decoder,
                        const text::Tokenizer& tokenizer, const ModelSection& section);
// What that has written, in place.
absl::Status LoadToGoOn(Env& env, const std::string& folder, model::Decoder& decoder);

// Of a model of which each rank has a part, and saves it in the state of its stage (Stage::splits_weights()): all but
// the weights, which need not be there.
absl::Status SaveConfigToGoOn(Env& env, const std::string& folder, const model::Decoder& decoder,
                              const text::Tokenizer& tokenizer, const ModelSection& section);
// The bytes that it writes, about.
uint64_t BytesToGoOn(const model::Decoder& decoder);

// Folders, none of which is there, for a model whose run cannot write in its own, the best first: RUN-rescued-PID
// beside it, and in the working folder.
std::vector<std::string> RescueFolders(Env& env, const std::string& run_dir);

}  // namespace tdock::trainer
