// A data set: files of records, the meaning of their columns, and the samples of a phase.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "data/adapter.h"
#include "data/encode.h"
#include "data/record_file.h"
#include "data/source.h"

namespace tdock::data {

// The records of several files, one file after the other. Thread-safe.
class Dataset final : public Source<Sample> {
 public:
  // InvalidArgument if the adapter has no column for what the phase needs; if no record of a file has one of the
  // columns, naming those that exist; or if there are no records at all.
  static absl::StatusOr<std::unique_ptr<Dataset>> Open(Env& env, std::span<const std::string> paths,
                                                       std::optional<Format> format, const Adapter& adapter,
                                                       Phase phase, const RecordLimits& limits = {});

  int64_t size() const override { return begins_.back(); }
  std::vector<absl::StatusOr<OrSkip<Sample>>> Load(std::span<const int64_t> indexes) const override;
  text::ContentHash content() const override { return content_; }

  // The position of record `index`: "path:line".
  std::string Place(int64_t index) const;

 private:
  Dataset(Adapter adapter, Phase phase) : adapter_(std::move(adapter)), phase_(phase) {}

  size_t FileOf(int64_t index) const;

  const Adapter adapter_;
  const Phase phase_;
  std::vector<std::string> columns_;
  std::vector<std::unique_ptr<RecordFile>> files_;
  std::vector<int64_t> begins_ = {0};  // of each file's records, and after the last
  text::ContentHash content_;
};

// The samples of a data set as tokens. Thread-safe.
class EncodedDataset final : public Source<EncodedSample> {
 public:
  // `samples` must outlive it. `tokenizer_content` is the hash of the tokenizer's files; see TokenizerContent().
  // `place` names the position of a sample that cannot be encoded.
  EncodedDataset(const Source<Sample>& samples, SampleEncoder encoder, const text::ContentHash& tokenizer_content,
                 std::function<std::string(int64_t)> place);

  int64_t size() const override { return samples_.size(); }
  std::vector<absl::StatusOr<OrSkip<EncodedSample>>> Load(std::span<const int64_t> indexes) const override;
  text::ContentHash content() const override { return content_; }

 private:
  const Source<Sample>& samples_;
  const SampleEncoder encoder_;
  const std::function<std::string(int64_t)> place_;
  text::ContentHash content_;
};

// The hash of the files in `folder` that a tokenizer is read from. NotFound if there are none.
absl::StatusOr<text::ContentHash> TokenizerContent(Env& env, const std::string& folder);

// The files of a split, such as "train", of a local data set. `path` is a file, which is the only split; or a folder,
// which holds files (or a folder `data` with files) whose names begin with the split's, up to a dot, a dash or an
// underscore. "eval", "test" and "validation" stand for each other, in this order. NotFound says which files there are.
absl::StatusOr<std::vector<std::string>> FindSplit(Env& env, const std::string& path, const std::string& split);

// The folder of the cache of huggingface_hub: $HF_HUB_CACHE, else $HF_HOME/hub, else $HOME/.cache/huggingface/hub;
// empty where none of these is set. `variable` gives a variable of the environment, as std::getenv does.
std::string DefaultHubCache(const std::function<const char*(const char*)>& variable);

// The folder in which the Python package huggingface_hub keeps the data set `name` ("owner/name"), of the revision
// that "main" was. `hub` is the folder of its cache. NotFound where it is not there: nothing is downloaded.
absl::StatusOr<std::string> FindInHubCache(Env& env, const std::string& hub, absl::string_view name);

}  // namespace tdock::data
