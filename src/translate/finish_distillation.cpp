// Makes keys of TRL's GKD: what is learnt from a teacher.
#include <array>

#include "translate/translator.h"

namespace snug {
namespace {

constexpr std::string_view kOwnReplies =
    "snug's teacher is asked of the data's replies, not of what the model writes; lmbda: 0 says so";

constexpr std::array kOfDistillation = {"teacher", "distill_beta", "distill_temperature", "own_replies",
                                        "teachers_replies"};

void finish_number(Translator& t, const char* held, const char* key) {
  if (const Setting* const setting = t.held(held)) t.put(key, setting->value, *setting);
}

}  // namespace

void judge_without_distillation(Translator& t) {
  for (const char* held : kOfDistillation)
    for (const Setting* setting : t.all_held(held))
      t.judge(*setting, is_off(setting->value) ? Mark::Same : Mark::Refused,
              is_off(setting->value) ? "off, as here" : "of GKD, and another objective is asked for");
}

void finish_distillation(Translator& t) {
  if (const Setting* const teacher = t.held("teacher"); teacher && !is_off(teacher->value))
    t.put("teacher", yaml_text(teacher->value), *teacher);
  else
    t.remark("without a teacher GKD's is the model itself, from which nothing is learnt; snug asks for one: teacher");
  finish_number(t, "trl_beta", "distill_beta");
  finish_number(t, "beta", "distill_beta");
  finish_number(t, "distill_temperature", "distill_temperature");
  if (const Setting* const share = t.held("own_replies")) {
    const bool none = t.number("own_replies") == 0.0;
    t.judge(*share, none ? Mark::Same : Mark::Refused,
            none ? "the data's replies are learnt, as here" : filled(kOwnReplies, *share));
  }
  if (const Setting* const whole = t.held("teachers_replies"))
    t.judge(*whole, is_off(whole->value) ? Mark::Same : Mark::Refused,
            is_off(whole->value) ? "off, as here" : "snug's teacher writes no replies: generate does, into a file");
  t.remark("the last reply of a conversation is learnt there, and each of its replies here");
  t.remark(
      "the divergence is over the teacher's teacher_top_k most likely tokens and all others as one; theirs is over "
      "the whole vocabulary");
}

}  // namespace snug
