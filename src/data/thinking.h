// Decides what becomes of the thinking in replies of earlier turns.
#pragma once

#include <string_view>
#include <vector>

#include "data/shapes.h"

namespace snug {

// Says what the template gets. Keep: all of the thinking. Drop: replies before the last question lose theirs. Last: a
// conversation with thinking in such replies becomes several, one for each question, whose replies are then the last
// ones; each carries only the loss of its last question and replies.
enum class Thinking { Keep, Drop, Last };

// Returns the value that `thinking` spells keep, drop or last. Throws UserError that lists them for another name.
Thinking thinking_from_name(std::string_view name);

std::vector<Conversation> with_thinking(Conversation conversation, Thinking thinking);

}  // namespace snug
