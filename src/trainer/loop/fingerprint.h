// What a run is made of, to refuse to go on with something else.
#pragma once

#include <map>
#include <span>
#include <string>

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
// weights and shapes that the run begins with, "<tokenizer>" and "<template>" of their files, "<data>" of the samples,
// how they are encoded, and their order, "<validation>" and "<ptx>" of the other samples. Without the keys that change
// nothing that is computed, such as `threads`, and those of files whose contents are among the checksums.
using Fingerprint = std::map<std::string, std::string>;

// `decoder` is as the run begins with it, `order` the loader's LoaderPosition::order. Reads all weights once.
absl::StatusOr<Fingerprint> FingerprintOf(Env& env, const config::Spec& spec, const RunConfig& config,
                                          const RunInputs& inputs, const model::Decoder& decoder,
                                          const text::ContentHash& order);

// FailedPrecondition names each difference, with both values, and how to allow it; OK if each is in `allowed`, which
// has keys, or names without the brackets. A key that only one of them has is no difference: another version of this
// program knows it, or it has no meaning beside another key.
absl::Status CheckFingerprint(const Fingerprint& saved, const Fingerprint& now, std::span<const std::string> allowed);

}  // namespace tdock::trainer
