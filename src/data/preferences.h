// Says what replies to one prompt have in common: in messages and in tokens.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "data/shapes.h"

namespace snug {

// Returns how many messages all conversations begin with.
size_t common_messages(const std::vector<Conversation>& conversations);
// Returns whether a conversation begins with these messages.
bool begins_with_messages(const Conversation& conversation, const Conversation& beginning);

// Returns how many token ids all samples begin with; fewer than the shortest has.
size_t common_tokens(const std::vector<TokenSample>& samples);
// Returns how many token ids the two begin with.
size_t common_tokens(const std::vector<int32_t>& a, const std::vector<int32_t>& b);

// Makes a sample's labels: its ids from `begin` on, none before.
void label_from(size_t begin, TokenSample& sample);
// Lets the labels of all samples that have any begin where the first of them does, or where their ids part, if that is
// before: their prompt is then alike.
void align_labels(std::vector<TokenSample>& samples);

// Returns the samples that choices make of replies: a pair holds the chosen one first.
std::vector<TokenSample> chosen_samples(const std::vector<TokenSample>& replies,
                                        const std::vector<Answers::Choice>& choices);

// Returns whether a text begins as transcripts of the Helpful and Harmless data do: "\n\nHuman:", with an answer.
bool begins_as_transcript(std::string_view text);
// Returns its turns without the white space around them, as stripped() returns texts; nothing if it is none.
std::optional<Conversation> turns_of_transcript(std::string_view text);
std::string_view stripped(std::string_view text);

}  // namespace snug
