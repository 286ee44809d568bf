#include "data/token_cache.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::data {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

constexpr absl::string_view kMagic = "TDTOKENS";
constexpr absl::string_view kEndMagic = "TDTOKEND";
constexpr uint32_t kVersion = 4;
constexpr size_t kHeaderBytes = 32;
constexpr size_t kFooterBytes = 72;
constexpr size_t kSealBytes = 24;  // the last ones of the footer
constexpr size_t kSampleHeaderBytes = 32;
constexpr uint32_t kFixedTexts = 3;  // prompt, truth and source
constexpr size_t kCounts = 5;
constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr uint64_t kMaxSampleBytes = uint64_t{1} << 32;
constexpr uint32_t kTruncated = 1;
constexpr uint32_t kHasLabel = 2;
constexpr uint32_t kHasMessages = 4;
constexpr uint32_t kRewritten = 8;
constexpr uint32_t kIsPart = 16;
constexpr uint64_t kFlagsOffset = 12;  // in a sample

template <class T>
void Put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class T>
void PutAll(std::string& bytes, const std::vector<T>& values) {
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

template <class T>
T NumberAt(absl::string_view bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

template <class T>
std::vector<T> NumbersAt(absl::string_view bytes, size_t offset, size_t count) {
  std::vector<T> values(count);
  if (count > 0) std::memcpy(values.data(), bytes.data() + offset, count * sizeof(T));
  return values;
}

std::string HeaderOf(const text::ContentHash& content) {
  std::string header(kMagic);
  Put(header, kVersion);
  Put(header, uint32_t{0});
  Put(header, content.high);
  Put(header, content.low);
  return header;
}

void PutText(std::string& bytes, const std::string& text) {
  Put(bytes, static_cast<uint32_t>(text.size()));
  bytes += text;
}

std::string BytesOf(const EncodedSample& sample) {
  std::string bytes;
  Put(bytes, static_cast<uint32_t>(sample.ids.size()));
  Put(bytes, static_cast<uint32_t>(sample.loss_mask.size()));
  Put(bytes, static_cast<uint32_t>(sample.rejected.size()));
  Put(bytes, (sample.truncated ? kTruncated : 0) | (sample.label ? kHasLabel : 0) |
                 (sample.messages.empty() ? 0 : kHasMessages) | (sample.rewritten ? kRewritten : 0) |
                 (sample.is_part ? kIsPart : 0));
  Put(bytes, sample.label.value_or(0));
  Put(bytes, static_cast<uint32_t>(sample.prompt_tokens));
  Put(bytes, kFixedTexts + (sample.messages.empty() ? 0 : 1) + static_cast<uint32_t>(sample.kept.size()));
  PutAll(bytes, sample.ids);
  PutAll(bytes, sample.rejected);
  PutAll(bytes, sample.loss_mask);
  PutAll(bytes, sample.rejected_mask);
  for (const std::string* text : {&sample.prompt_text, &sample.truth, &sample.source}) PutText(bytes, *text);
  if (!sample.messages.empty()) PutText(bytes, sample.messages);
  for (const std::string& text : sample.kept) PutText(bytes, text);
  bytes.resize((bytes.size() + 7) / 8 * 8, '\0');
  return bytes;
}

// Takes a text off the bytes; nothing where they do not begin with one.
std::optional<std::string> TakeText(absl::string_view& bytes) {
  if (bytes.size() < sizeof(uint32_t)) return std::nullopt;
  const size_t size = NumberAt<uint32_t>(bytes, 0);
  bytes.remove_prefix(sizeof(uint32_t));
  if (size > bytes.size()) return std::nullopt;
  const absl::string_view text = bytes.substr(0, size);
  bytes.remove_prefix(size);
  if (FindInvalidUtf8(text)) return std::nullopt;
  return std::string(text);
}

// The texts of a sample, and what must be left behind them.
absl::Status TakeTexts(absl::string_view bytes, uint32_t count, bool has_messages, EncodedSample& sample) {
  const absl::Status wrong = absl::DataLossError("the texts of a sample do not fill their place");
  for (uint32_t i = 0; i < count; ++i) {
    std::optional<std::string> text = TakeText(bytes);
    if (!text) return wrong;
    if (i < kFixedTexts) {
      (i == 0 ? sample.prompt_text : i == 1 ? sample.truth : sample.source) = *std::move(text);
    } else if (i == kFixedTexts && has_messages) {
      sample.messages = *std::move(text);
    } else {
      sample.kept.push_back(*std::move(text));
    }
  }
  return bytes.size() < 8 ? absl::OkStatus() : wrong;
}

// Whatever the bytes are: a checksum is no proof that they were ours.
absl::StatusOr<EncodedSample> SampleAt(absl::string_view bytes) {
  if (bytes.size() < kSampleHeaderBytes) return absl::DataLossError("a sample is shorter than its header");
  const uint64_t ids = NumberAt<uint32_t>(bytes, 0);
  const uint64_t masks = NumberAt<uint32_t>(bytes, 4);
  const uint64_t rejected = NumberAt<uint32_t>(bytes, 8);
  const auto flags = NumberAt<uint32_t>(bytes, kFlagsOffset);
  const uint64_t prompt_tokens = NumberAt<uint32_t>(bytes, 24);
  const auto texts = NumberAt<uint32_t>(bytes, 28);
  const uint64_t size = kSampleHeaderBytes + 4 * ids + 5 * rejected + masks;  // each of `rejected` has a mask
  constexpr uint32_t kAllFlags = kTruncated | kHasLabel | kHasMessages | kRewritten | kIsPart;
  if (size > bytes.size() || (masks != 0 && masks != ids) || flags > kAllFlags || prompt_tokens > ids ||
      texts < kFixedTexts + ((flags & kHasMessages) != 0 ? 1 : 0)) {
    return absl::DataLossError("a sample does not fit in its place");
  }
  EncodedSample sample{
      .ids = NumbersAt<int32_t>(bytes, kSampleHeaderBytes, ids),
      .loss_mask = NumbersAt<uint8_t>(bytes, kSampleHeaderBytes + 4 * (ids + rejected), masks),
      .rejected = NumbersAt<int32_t>(bytes, kSampleHeaderBytes + 4 * ids, rejected),
      .rejected_mask = NumbersAt<uint8_t>(bytes, kSampleHeaderBytes + 4 * (ids + rejected) + masks, rejected),
      .label = std::nullopt,
      .truncated = (flags & kTruncated) != 0,
      .rewritten = (flags & kRewritten) != 0,
      .is_part = (flags & kIsPart) != 0,
      .prompt_tokens = static_cast<int64_t>(prompt_tokens)};
  if ((flags & kHasLabel) != 0) sample.label = NumberAt<double>(bytes, 16);
  TDOCK_RETURN_IF_ERROR(TakeTexts(bytes.substr(size), texts, (flags & kHasMessages) != 0, sample));
  return sample;
}

// Hashes a file as it grows.
class CacheWriter {
 public:
  explicit CacheWriter(WritableFile& file) : file_(file) {}

  absl::Status Append(absl::string_view bytes) {
    hasher_.Add(bytes);
    size_ += bytes.size();
    pending_.append(bytes.data(), bytes.size());
    return pending_.size() < kPieceBytes ? absl::OkStatus() : Flush();
  }

  uint64_t size() const { return size_; }

  absl::Status Finish() {
    const text::ContentHash hash = hasher_.Value();
    Put(pending_, hash.high);
    Put(pending_, hash.low);
    pending_.append(kEndMagic.data(), kEndMagic.size());
    return Flush();
  }

 private:
  absl::Status Flush() {
    const std::string pending = std::exchange(pending_, "");
    return file_.Append(pending);
  }

  WritableFile& file_;
  text::ContentHasher hasher_;
  std::string pending_;
  uint64_t size_ = 0;
};

absl::Status WriteSamples(WritableFile& file, const Source<EncodedSample>& source, const CacheOptions& options,
                          const text::ContentHash& content) {
  constexpr int64_t kBatch = 64;
  Loader<EncodedSample> loader(source, {.batch_size = kBatch,
                                        .shuffle = false,
                                        .drop_last = false,
                                        .epochs = 1,
                                        .workers = options.workers,
                                        .skip_bad_records = options.skip_bad_records,
                                        .report = options.report});
  CacheWriter writer(file);
  TDOCK_RETURN_IF_ERROR(writer.Append(HeaderOf(content)));
  std::vector<uint64_t> begins = {writer.size()};
  for (;;) {
    TDOCK_ASSIGN_OR_RETURN(const auto batch, loader.Next());
    if (!batch) break;
    for (const EncodedSample& sample : *batch) {
      TDOCK_RETURN_IF_ERROR(writer.Append(BytesOf(sample)));
      begins.push_back(writer.size());
    }
  }
  const LoaderCounts& counts = loader.position().counts;
  std::string end;
  PutAll(end, begins);
  Put(end, static_cast<uint64_t>(begins.size() - 1));
  for (const int64_t count : {counts.samples, counts.bad, counts.incomplete, counts.overlong, counts.truncated}) {
    Put(end, count);
  }
  TDOCK_RETURN_IF_ERROR(writer.Append(end));
  return writer.Finish();
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenCache>> TokenCache::Open(std::unique_ptr<ReadableFile> file,
                                                             const std::string& name,
                                                             const text::ContentHash& content) {
  std::unique_ptr<TokenCache> made(new TokenCache(std::move(file), name, content));
  const absl::Status whole = [&]() -> absl::Status {
    if (made->file_->size() < kHeaderBytes + sizeof(uint64_t) + kFooterBytes)
      return absl::DataLossError("it is too short");
    std::string header(kHeaderBytes, '\0');
    TDOCK_RETURN_IF_ERROR(made->file_->ReadAt(0, header));
    if (header != HeaderOf(content)) return absl::DataLossError("it is for other samples, or another version");
    TDOCK_RETURN_IF_ERROR(made->CheckChecksum());
    return made->ReadEnds();
  }();
  if (!whole.ok()) return Annotate(whole, name);
  return made;
}

absl::Status TokenCache::CheckChecksum() const {
  text::ContentHasher hasher;
  std::string piece;
  const uint64_t end = file_->size() - kSealBytes;
  for (uint64_t at = 0; at < end; at += piece.size()) {
    piece.resize(std::min<uint64_t>(kPieceBytes, end - at));
    TDOCK_RETURN_IF_ERROR(file_->ReadAt(at, piece));
    hasher.Add(piece);
  }
  std::string seal(kSealBytes, '\0');
  TDOCK_RETURN_IF_ERROR(file_->ReadAt(end, seal));
  if (seal.substr(16) != kEndMagic) return absl::DataLossError("its end is missing");
  if (hasher.Value() != text::ContentHash{NumberAt<uint64_t>(seal, 0), NumberAt<uint64_t>(seal, 8)}) {
    return absl::DataLossError("its checksum is wrong");
  }
  return absl::OkStatus();
}

absl::Status TokenCache::ReadEnds() {
  std::string footer(kFooterBytes, '\0');
  const uint64_t footer_begin = file_->size() - kFooterBytes;
  TDOCK_RETURN_IF_ERROR(file_->ReadAt(footer_begin, footer));
  const auto samples = NumberAt<uint64_t>(footer, 0);
  const uint64_t room = footer_begin - kHeaderBytes;
  if (samples == 0) return absl::DataLossError("it has no samples");  // none is written without any
  if (samples >= room / sizeof(uint64_t)) return absl::DataLossError("it has more samples than room for them");
  const uint64_t begins_at = footer_begin - (samples + 1) * sizeof(uint64_t);
  begins_.resize(samples + 1);
  TDOCK_RETURN_IF_ERROR(
      file_->ReadAt(begins_at, {reinterpret_cast<char*>(begins_.data()), begins_.size() * sizeof(uint64_t)}));
  bool sound = begins_.front() == kHeaderBytes && begins_.back() == begins_at;
  for (size_t i = 1; sound && i < begins_.size(); ++i) {
    sound = begins_[i - 1] <= begins_[i] && begins_[i] - begins_[i - 1] <= kMaxSampleBytes;
  }
  if (!sound) return absl::DataLossError("its samples do not lie one after another");
  const std::vector<int64_t> counts = NumbersAt<int64_t>(footer, sizeof(uint64_t), kCounts);
  counts_ = {
      .samples = counts[0], .bad = counts[1], .incomplete = counts[2], .overlong = counts[3], .truncated = counts[4]};
  return absl::OkStatus();
}

std::vector<absl::StatusOr<OrSkip<EncodedSample>>> TokenCache::Load(std::span<const int64_t> indexes) const {
  std::vector<absl::StatusOr<OrSkip<EncodedSample>>> samples;
  samples.reserve(indexes.size());
  std::string bytes;
  for (const int64_t index : indexes) {
    const auto at = static_cast<size_t>(index);
    TDOCK_CHECK(index >= 0 && at + 1 < begins_.size(), "an index lies within the cache");
    bytes.resize(begins_[at + 1] - begins_[at]);
    const absl::Status read = file_->ReadAt(begins_[at], bytes);
    absl::StatusOr<EncodedSample> sample = read.ok() ? SampleAt(bytes) : absl::StatusOr<EncodedSample>(read);
    if (sample.ok()) {
      samples.emplace_back(*std::move(sample));
    } else {
      samples.emplace_back(Annotate(sample.status(), name_));
    }
  }
  return samples;
}

bool TokenCache::BeginsRecord(int64_t index) const {
  if (index == 0) return true;
  const uint64_t begin = begins_[static_cast<size_t>(index)];
  std::string flags(sizeof(uint32_t), '\0');
  const bool has_flags = begins_[static_cast<size_t>(index) + 1] - begin >= kSampleHeaderBytes;
  // Load() tells what cannot be read.
  if (!has_flags || !file_->ReadAt(begin + kFlagsOffset, flags).ok()) return true;
  return (NumberAt<uint32_t>(flags, 0) & kIsPart) == 0;
}

namespace {

// The content of a cache with the samples of `source` and these options.
text::ContentHash CachedContent(const Source<EncodedSample>& source, const CacheOptions& options) {
  text::ContentHasher hasher;
  hasher.AddField(text::Hex(source.content()));
  hasher.AddField(options.skip_bad_records ? "bad records are left out" : "no bad records");
  return hasher.Value();
}

std::string PathOf(const text::ContentHash& content, const CacheOptions& options) {
  return JoinPath(options.folder, absl::StrCat(text::Hex(content), ".tokens"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenCache>> OpenCache(Env& env, const Source<EncodedSample>& source,
                                                      const CacheOptions& options) {
  const text::ContentHash content = CachedContent(source, options);
  const std::string path = PathOf(content, options);
  if (!env.Exists(path)) return nullptr;
  TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, env.OpenForReading(path));
  absl::StatusOr<std::unique_ptr<TokenCache>> cached = TokenCache::Open(std::move(file), path, content);
  if (cached.ok()) return cached;
  options.log(absl::StrCat("rebuilding a corrupt cache: ", cached.status().message()));
  return nullptr;
}

absl::StatusOr<std::unique_ptr<TokenCache>> BuildCache(Env& env, const Source<EncodedSample>& source,
                                                       const CacheOptions& options) {
  const text::ContentHash content = CachedContent(source, options);
  const std::string path = PathOf(content, options);
  TDOCK_RETURN_IF_ERROR(env.CreateFolders(options.folder));
  TDOCK_RETURN_IF_ERROR(
      WriteFileAtomically(env, path, [&](WritableFile& file) { return WriteSamples(file, source, options, content); }));
  TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, env.OpenForReading(path));
  return TokenCache::Open(std::move(file), path, content);
}

}  // namespace tdock::data
