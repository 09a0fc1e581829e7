#include "format/sentencepiece.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "base/error.h"
#include "format/protobuf.h"
#include "format/unicode.h"

namespace snug {
namespace {

constexpr size_t kMaxPieces = size_t{1} << 24;

// Lists fields of ModelProto and of the messages in it that are read, by number.
constexpr uint32_t kPieces = 1, kTrainer = 2, kNormalizer = 3, kDenormalizer = 5;
constexpr uint32_t kPieceText = 1, kPieceScore = 2, kPieceType = 3;
constexpr uint32_t kModelType = 3, kSpaceAsSuffix = 24, kByteFallback = 35, kBosPiece = 46, kEosPiece = 47;
constexpr uint32_t kCharsMap = 2, kDummyPrefix = 3, kExtraSpaces = 4, kEscapesSpaces = 5;
constexpr int64_t kBpe = 2;

std::string_view name_of_type(int64_t type) {
  switch (type) {
    case 1:
      return "unigram";
    case 3:
      return "word";
    case 4:
      return "char";
    default:
      return "an unknown type";
  }
}

SentencePieces::Piece parse_piece(std::string_view bytes, const std::string& source, size_t id) {
  SentencePieces::Piece piece;
  ProtobufReader reader(bytes, source);
  for (ProtobufReader::Field field; reader.next(field);) {
    if (field.number == kPieceText) piece.text = reader.bytes_of(field);
    if (field.number == kPieceScore) piece.score = reader.real(field);
    if (field.number != kPieceType) continue;
    const int64_t type = reader.integer(field);
    if (type < 1 || type > 6) user_error("{}, piece {}: found type {}, expected 1 to 6", source, id, type);
    piece.type = static_cast<SentencePieces::Type>(type);
  }
  if (piece.text.empty() || piece.text.size() > SentencePieces::kMaxPieceBytes || find_invalid_utf8(piece.text)) {
    user_error("{}, piece {}: found a text of {} bytes, expected 1 to {} bytes of UTF-8", source, id, piece.text.size(),
               SentencePieces::kMaxPieceBytes);
  }
  if (std::isnan(piece.score)) user_error("{}, piece {}: found a score that is no number", source, id);
  return piece;
}

struct Names {
  std::string bos = "<s>", eos = "</s>";
};

void parse_trainer(std::string_view bytes, const std::string& source, SentencePieces& out, Names& names) {
  int64_t type = 1;
  ProtobufReader reader(bytes, source);
  for (ProtobufReader::Field field; reader.next(field);) {
    if (field.number == kModelType) type = reader.integer(field);
    if (field.number == kByteFallback) out.byte_fallback = reader.boolean(field);
    if (field.number == kBosPiece) names.bos = reader.bytes_of(field);
    if (field.number == kEosPiece) names.eos = reader.bytes_of(field);
    if (field.number == kSpaceAsSuffix && reader.boolean(field)) {
      user_error("{}, trainer_spec.treat_whitespace_as_suffix: found true, expected false", source);
    }
  }
  if (type != kBpe) {
    user_error("{}, trainer_spec.model_type: found {} ({}), expected 2 (BPE)", source, type, name_of_type(type));
  }
}

void parse_normalizer(std::string_view bytes, const std::string& source, SentencePieces& out) {
  ProtobufReader reader(bytes, source);
  for (ProtobufReader::Field field; reader.next(field);) {
    if (field.number == kCharsMap && !reader.bytes_of(field).empty()) {
      user_error("{}, normalizer_spec.precompiled_charsmap: found {} bytes, expected none (identity)", source,
                 field.bytes.size());
    }
    if (field.number == kDummyPrefix) out.adds_prefix = reader.boolean(field);
    if (field.number == kExtraSpaces) out.collapses_spaces = reader.boolean(field);
    if (field.number == kEscapesSpaces && !reader.boolean(field)) {
      user_error("{}, normalizer_spec.escape_whitespaces: found false, expected true", source);
    }
  }
}

}  // namespace

SentencePieces parse_sentencepiece(std::string_view bytes, const std::string& source) {
  SentencePieces out;
  out.collapses_spaces = true;  // the format's default
  Names names;
  bool has_trainer = false;
  ProtobufReader reader(bytes, source);
  for (ProtobufReader::Field field; reader.next(field);) {
    if (field.number == kPieces) {
      if (out.pieces.size() >= kMaxPieces) user_error("{}: found more than {} pieces", source, kMaxPieces);
      out.pieces.push_back(parse_piece(reader.bytes_of(field), source, out.pieces.size()));
    } else if (field.number == kTrainer) {
      parse_trainer(reader.bytes_of(field), source, out, names);
      has_trainer = true;
    } else if (field.number == kNormalizer) {
      parse_normalizer(reader.bytes_of(field), source, out);
    } else if (field.number == kDenormalizer) {
      SentencePieces unused;
      parse_normalizer(reader.bytes_of(field), source, unused);
    }
  }
  if (!has_trainer || out.pieces.empty()) {
    user_error("{}: found {} pieces and {} trainer_spec, expected a SentencePiece model", source, out.pieces.size(),
               has_trainer ? "a" : "no");
  }
  for (size_t i = 0; i < out.pieces.size(); ++i) {
    const SentencePieces::Piece& piece = out.pieces[i];
    const auto id = static_cast<int32_t>(i);
    if (piece.type == SentencePieces::Type::Unknown) out.unknown = id;
    if (piece.type != SentencePieces::Type::Control) continue;
    if (piece.text == names.bos) out.bos = id;
    if (piece.text == names.eos) out.eos = id;
  }
  return out;
}

std::vector<SentencePieces::Merge> SentencePieces::merges() const {
  const auto joins = [](const Piece& piece) { return piece.type == Type::Normal || piece.type == Type::UserDefined; };
  std::unordered_map<std::string_view, int32_t> ids;
  std::vector<int32_t> order;
  for (size_t id = 0; id < pieces.size(); ++id) {
    if (!joins(pieces[id])) continue;
    ids.emplace(pieces[id].text, static_cast<int32_t>(id));
    order.push_back(static_cast<int32_t>(id));
  }
  const auto score = [&](int32_t id) { return pieces[static_cast<size_t>(id)].score; };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return score(a) > score(b); });

  std::vector<Merge> merges;
  uint32_t rank = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && score(order[i]) != score(order[i - 1])) ++rank;
    const std::string_view text = pieces[static_cast<size_t>(order[i])].text;
    for (size_t cut = start_of_last(text, text.size()); cut > 0; cut = start_of_last(text, cut)) {
      const auto left = ids.find(text.substr(0, cut)), right = ids.find(text.substr(cut));
      if (left != ids.end() && right != ids.end()) merges.push_back({left->second, right->second, order[i], rank});
    }
  }
  return merges;
}

}  // namespace snug
