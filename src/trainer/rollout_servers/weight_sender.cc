#include "trainer/rollout_servers/weight_sender.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/json_text.h"
#include "core/base/retry.h"
#include "core/base/status.h"
#include "model/decoder/checkpoint.h"
#include "tdock/dtype.h"
#include "trainer/rollout_servers/weight_check.h"
#include "trainer/rollout_servers/weight_pieces.h"
#include "trainer/stages/guard.h"

namespace tdock::trainer {
namespace {

using Json = nlohmann::json;

constexpr int64_t kPieceBytes = 8 << 20;
constexpr int kPieceTries = 3;
constexpr absl::Duration kPieceWithin = absl::Seconds(60);
constexpr absl::Duration kBetweenTries = absl::Milliseconds(200);

// As safetensors files have it; empty for those that servers do not take.
std::string NameOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
    default:
      return "";
  }
}

// An upload to several servers.
class Upload {
 public:
  Upload(std::span<const Recipient> recipients, const SendOptions& options)
      : recipients_(recipients), options_(options), uploads_(recipients.size()) {
    result_.deliveries.resize(recipients.size());
  }

  absl::Status Begin(const std::vector<model::NamedInfo>& infos) {
    Json tensors = Json::array();
    for (const model::NamedInfo& info : infos) {
      const std::string dtype = NameOf(info.info.dtype);
      if (dtype.empty()) {
        return absl::UnimplementedError(absl::StrCat("the weight ", info.name, " is ", Name(info.info.dtype),
                                                     "; servers take float32, bfloat16 and float16"));
      }
      tensors.push_back({{"name", info.name}, {"dtype", dtype}, {"shape", info.info.shape}});
    }
    ForEachOpen([&](size_t i) {
      Delivery& delivery = result_.deliveries[i];
      const Json body = {
          {"tensors", tensors}, {"weight_version", recipients_[i].version}, {"flush_cache", !options_.keep_cache}};
      delivery.sent = recipients_[i].client.Send({.target = "/update_weights", .body = JsonText(body)},
                                                 options_.PatienceOfRequest(kPieceWithin));
      if (!delivery.sent.status.ok()) return;
      auto card = recipients_[i].client.Read(delivery.sent, ReadUpload(delivery.sent.body));
      if (card.ok()) uploads_[i] = *std::move(card);
    });
    return absl::OkStatus();
  }

  // Size of a piece that every server takes.
  size_t PieceBytes() const {
    int64_t bytes = kPieceBytes;
    for (size_t i = 0; i < uploads_.size(); ++i) {
      if (IsOpen(i)) bytes = std::min(bytes, uploads_[i].most_piece_bytes);
    }
    return static_cast<size_t>(bytes);
  }

  bool AnyIsOpen() const {
    for (size_t i = 0; i < uploads_.size(); ++i) {
      if (IsOpen(i)) return true;
    }
    return false;
  }

  void Send(absl::string_view piece) {
    const std::string body(piece);
    ForEachOpen([&](size_t i) {
      const reward::HttpAsk ask{.target = absl::StrCat("/update_weights?upload=", uploads_[i].id, "&offset=", offset_),
                                .body = body,
                                .content_type = "application/octet-stream"};
      Sent& sent = result_.deliveries[i].sent;
      // One that has stopped does not stop the others for longer.
      const reward::Patience patience = options_.PatienceOfRequest(kPieceWithin);
      for (int tries = 1;; ++tries) {
        sent = recipients_[i].client.Send(ask, patience);
        const bool again = sent.trouble == Trouble::kConnection || sent.trouble == Trouble::kOverload;
        if (!again || tries == kPieceTries) return;
        const absl::Time next = options_.clock->Now() + std::max(kBetweenTries, sent.wait.value_or(kBetweenTries));
        if (!patience.SleepUntil(next, "another try").ok()) return;
      }
    });
    offset_ += piece.size();
    for (size_t i = 0; i < uploads_.size(); ++i) {
      if (IsOpen(i)) result_.bytes += piece.size();
    }
  }

  void End(uint64_t checksum) {
    ForEachOpen([&](size_t i) {
      Delivery& delivery = result_.deliveries[i];
      delivery.sent =
          recipients_[i].client.Send({.target = absl::StrCat("/update_weights?upload=", uploads_[i].id,
                                                             "&checksum=", absl::StrFormat("%016x", checksum))},
                                     options_.PatienceOfRequest());
      if (!delivery.sent.status.ok()) return;
      auto said = recipients_[i].client.Read(delivery.sent, ReadUpdate(delivery.sent.body));
      if (said.ok()) delivery.said = *std::move(said);
    });
  }

  // Fails those that have not failed yet.
  void Fail(const absl::Status& status, Trouble trouble) {
    for (size_t i = 0; i < uploads_.size(); ++i) {
      if (IsOpen(i)) result_.deliveries[i].sent = {.status = status, .trouble = trouble};
    }
  }

  Deliveries Take() { return std::move(result_); }

 private:
  bool IsOpen(size_t i) const { return result_.deliveries[i].sent.status.ok(); }
  void ForEachOpen(const std::function<void(size_t)>& call) {
    options_.tasks->ForEach(uploads_.size(), [&](size_t i) {
      if (IsOpen(i)) call(i);
    });
  }

  const std::span<const Recipient> recipients_;
  const SendOptions& options_;
  std::vector<UploadCard> uploads_;
  uint64_t offset_ = 0;
  Deliveries result_;
};

absl::Status Stream(const model::Decoder& decoder, Upload& upload) {
  WeightPieces pieces(decoder);
  TDOCK_ASSIGN_OR_RETURN(const std::vector<model::NamedInfo> infos, pieces.Infos());
  TDOCK_RETURN_IF_ERROR(upload.Begin(infos));
  const size_t most = upload.PieceBytes();
  while (upload.AnyIsOpen()) {
    const absl::string_view piece = pieces.Next(most);
    if (piece.empty()) break;
    upload.Send(piece);
  }
  upload.End(pieces.Checksum());
  return absl::OkStatus();
}

// Lets a server read a folder. A vLLM is halted meanwhile: it would make tokens with some of the weights otherwise. An
// SGLang waits for its answers, and is halted where they go on.
void LetReadFolder(const std::string& folder, const std::string& path, const Recipient& recipient,
                   const SendOptions& options, FolderDigests& digests, Delivery& delivery) {
  const bool is_own = HasOwnFolderCall(recipient.kind, path), is_vllm = recipient.kind == ServerKind::kVllm;
  ServerUpdate update(recipient, options, delivery);
  if (is_own && (is_vllm || options.keep_cache) && !update.Halt()) return;
  if (!update.Call(FolderCall(recipient.kind, path, folder, recipient.version, !options.keep_cache)) || !is_own) return;
  if (is_vllm && !update.Call(RelabelCall(recipient.version))) return;
  if (update.CompareLabel() && update.CompareDigests(digests)) update.GoOn();
}

}  // namespace

Deliveries StreamWeights(const model::Decoder& decoder, std::span<const Recipient> recipients,
                         const SendOptions& options) {
  Upload upload(recipients, options);
  const absl::Status streamed = Guarded([&] { return Stream(decoder, upload); });
  if (!streamed.ok()) upload.Fail(streamed, Trouble::kFailed);
  return upload.Take();
}

WeightFolders::~WeightFolders() {
  for (const auto& [version, path] : written_) env_.RemoveAll(path).IgnoreError();
}

absl::StatusOr<std::string> WeightFolders::Write(const model::Decoder& decoder, int64_t version) {
  for (const auto& [written, path] : written_) {
    if (written == version) return path;
  }
  // Servers may have another working directory.
  std::error_code error;
  const std::string path =
      JoinPath(std::filesystem::absolute(folder_, error).string(), absl::StrCat(kFolderPrefix, version));
  written_.emplace_back(version, path);
  const model::SaveOptions options{.dtype = std::nullopt, .tokenizer_from = tokenizer_from_};
  absl::Status saved = env_.CreateFolders(folder_);
  if (saved.ok()) {
    saved = Guarded([&] {
      return decoder.lora() ? model::SaveCheckpoint(env_, path, decoder.Merged(), options)
                            : model::SaveCheckpoint(env_, path, decoder, options);
    });
  }
  if (saved.ok()) return path;
  env_.RemoveAll(path).IgnoreError();
  written_.pop_back();
  return Annotate(saved, absl::StrCat("the weights for servers (rollout.server_weights: folder) in ", path));
}

void WeightFolders::RemoveOthers(int64_t version) {
  std::erase_if(written_, [&](const auto& one) { return one.first != version && env_.RemoveAll(one.second).ok(); });
}

Deliveries PostFolder(Env& env, const std::string& folder, const std::string& path,
                      std::span<const Recipient> recipients, const SendOptions& options) {
  Deliveries result;
  result.deliveries.resize(recipients.size());
  FolderDigests digests(env, folder);
  options.tasks->ForEach(recipients.size(), [&](size_t i) {
    LetReadFolder(folder, path, recipients[i], options, digests, result.deliveries[i]);
  });
  return result;
}

}  // namespace tdock::trainer
