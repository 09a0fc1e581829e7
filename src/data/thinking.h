// What becomes of the thinking in replies of earlier turns.
#pragma once

#include <string_view>
#include <vector>

#include "data/shapes.h"

namespace snug {

// keep: the template is given all of it. drop: replies before the last question lose theirs. last: a conversation in
// which such replies have some becomes several, one a question, in which its replies are the last ones; each carries
// the loss of its last question and replies alone.
enum class Thinking { Keep, Drop, Last };

// As `thinking` spells them: keep, drop, last. UserError that lists them otherwise.
Thinking thinking_from_name(std::string_view name);

std::vector<Conversation> with_thinking(Conversation conversation, Thinking thinking);

}  // namespace snug
