// What a run is made of, to refuse to go on with something else.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "core/config/spec.h"
#include "model/decoder/decoder.h"
#include "text/content_hash.h"
#include "trainer/loop/inputs.h"
#include "trainer/loop/sections.h"

namespace tdock::trainer {

// The keys of the configuration with their values, and, in angle brackets as no key is, checksums: "<model>" of the
// weights and shapes that the run begins with, "<critic>" and "<reward_model>" of theirs, "<tokenizer>" and
// "<template>" of their files, "<data>" of the samples, how they are encoded, and their order, "<validation>" and
// "<ptx>" of the other samples. Without the keys that change nothing that is computed, such as `threads`, and those of
// files whose contents are among the checksums.
using Fingerprint = std::map<std::string, std::string>;

// Whether a key changes nothing that is computed, or says where something is whose contents have a checksum.
bool IsFree(const std::string& key);

// Of weights, adapters among them, and shapes.
std::string WeightsChecksum(const model::Decoder& decoder);

// Adds what the models beside the policy are: their weights, and where a model has them its own tokenizer and template.
absl::Status AddRoles(Env& env, const std::map<std::string, RoleModel>& models, Fingerprint& fingerprint);

// `decoder` is as the run begins with it, `order` the loader's LoaderPosition::order. Reads all weights once.
absl::StatusOr<Fingerprint> FingerprintOf(Env& env, const config::Spec& spec, const RunConfig& config,
                                          const RunInputs& inputs, const model::Decoder& decoder,
                                          const text::ContentHash& order);

// The names of the differences, without brackets. A key that only one of them has is none: another version of this
// program knows it, or it has no meaning beside another key.
std::vector<std::string> Changes(const Fingerprint& saved, const Fingerprint& now);

// FailedPrecondition names each of the changes, with both values, and how to allow it; OK if each is in `allowed`.
absl::Status CheckFingerprint(const Fingerprint& saved, const Fingerprint& now, std::span<const std::string> allowed);

}  // namespace tdock::trainer
