#include "text/sentencepiece_model.h"

#include <sentencepiece_processor.h>

#include <utility>

namespace tdock::text {

struct SentencePieceModel::Library {
  sentencepiece::SentencePieceProcessor processor;
};

SentencePieceModel::SentencePieceModel(std::unique_ptr<Library> library) : library_(std::move(library)) {}
SentencePieceModel::~SentencePieceModel() = default;

std::unique_ptr<SentencePieceModel> SentencePieceModel::Load(std::string_view bytes, std::string& error) {
  auto library = std::make_unique<Library>();
  const auto status = library->processor.LoadFromSerializedProto(bytes);
  if (!status.ok()) {
    error = status.ToString();
    return nullptr;
  }
  return std::unique_ptr<SentencePieceModel>(new SentencePieceModel(std::move(library)));
}

std::optional<std::vector<int>> SentencePieceModel::Encode(std::string_view text, std::string& error) const {
  std::vector<int> ids;
  const auto status = library_->processor.Encode(text, &ids);
  if (status.ok()) return ids;
  error = status.ToString();
  return std::nullopt;
}

std::optional<std::vector<SentencePieceModel::Piece>> SentencePieceModel::EncodeWithRanges(std::string_view text,
                                                                                           std::string& error) const {
  sentencepiece::ImmutableSentencePieceText encoded;
  const auto status = library_->processor.Encode(text, encoded.mutable_proto());
  if (!status.ok()) {
    error = status.ToString();
    return std::nullopt;
  }
  std::vector<Piece> pieces;
  for (const auto& piece : encoded.pieces()) {
    pieces.push_back({static_cast<int32_t>(piece.id()), piece.begin(), piece.end()});
  }
  return pieces;
}

int32_t SentencePieceModel::size() const { return library_->processor.GetPieceSize(); }

std::string SentencePieceModel::Text(int32_t id) const { return library_->processor.IdToPiece(id); }

SentencePieceModel::Kind SentencePieceModel::KindOf(int32_t id) const {
  if (library_->processor.IsControl(id)) return Kind::kControl;
  if (library_->processor.IsUnknown(id)) return Kind::kUnknown;
  if (library_->processor.IsByte(id)) return Kind::kByte;
  if (library_->processor.IsUnused(id)) return Kind::kUnused;
  return Kind::kNormal;
}

int32_t SentencePieceModel::bos_id() const { return library_->processor.bos_id(); }
int32_t SentencePieceModel::eos_id() const { return library_->processor.eos_id(); }
int32_t SentencePieceModel::pad_id() const { return library_->processor.pad_id(); }

}  // namespace tdock::text
