// The chat templates that are recognised, as chat_template.cpp's tags_of() spells programs, a tag a line. Lines that
// begin with '?' may be absent, but only all of a run together; an empty line divides two runs. '*' is any text in a
// string.
#pragma once

#include <string_view>

namespace snug {

// SmolLM2, Qwen2 and many others. '*': the default system text.
constexpr std::string_view kChatMlProgram = R"(?{{bos_token}}

?{%ifnotadd_generation_promptisdefined%}
?{%setadd_generation_prompt=false%}
?{%endif%}
{%formessageinmessages%}
?{%ifloop.firstandmessages[0].role!='system'%}
?{{'<|im_start|>system\n*<|im_end|>\n'}}
?{%endif%}
{{'<|im_start|>'+message.role+'\n'+message.content+'<|im_end|>\n'}}
{%endfor%}
{%ifadd_generation_prompt%}
{{'<|im_start|>assistant\n'}}
{%endif%}
)";

// Qwen2.5.
constexpr std::string_view kQwen25Program = R"({%iftools%}
{{'<|im_start|>system\n'}}
{%ifmessages[0].role=='system'%}
{{messages[0].content}}
{%else%}
{{'*'}}
{%endif%}
{{'\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>'}}
{%fortoolintools%}
{{'\n'}}
{{tool|tojson}}
{%endfor%}
{{'\n</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n'}}
{%else%}
{%ifmessages[0].role=='system'%}
{{'<|im_start|>system\n'+messages[0].content+'<|im_end|>\n'}}
{%else%}
{{'<|im_start|>system\n*<|im_end|>\n'}}
{%endif%}
{%endif%}
{%formessageinmessages%}
{%if(message.role=='user')or(message.role=='system'andnotloop.first)or(message.role=='assistant'andnotmessage.tool_calls)%}
{{'<|im_start|>'+message.role+'\n'+message.content+'<|im_end|>\n'}}
{%elifmessage.role=='assistant'%}
{{'<|im_start|>'+message.role}}
{%ifmessage.content%}
{{'\n'+message.content}}
{%endif%}
{%fortool_callinmessage.tool_calls%}
{%iftool_call.functionisdefined%}
{%settool_call=tool_call.function%}
{%endif%}
{{'\n<tool_call>\n{"name": "'}}
{{tool_call.name}}
{{'", "arguments": '}}
{{tool_call.arguments|tojson}}
{{'}\n</tool_call>'}}
{%endfor%}
{{'<|im_end|>\n'}}
{%elifmessage.role=='tool'%}
{%if(loop.index0==0)or(messages[loop.index0-1].role!='tool')%}
{{'<|im_start|>user'}}
{%endif%}
{{'\n<tool_response>\n'}}
{{message.content}}
{{'\n</tool_response>'}}
{%ifloop.lastor(messages[loop.index0+1].role!='tool')%}
{{'<|im_end|>\n'}}
{%endif%}
{%endif%}
{%endfor%}
{%ifadd_generation_prompt%}
{{'<|im_start|>assistant\n'}}
{%endif%}
)";

// Llama 3.
constexpr std::string_view kLlama3Program = R"({%setloop_messages=messages%}
{%formessageinloop_messages%}
{%setcontent='<|start_header_id|>'+message.role+'<|end_header_id|>\n\n'+message.content|trim+'<|eot_id|>'%}
{%ifloop.index0==0%}
{%setcontent=bos_token+content%}
{%endif%}
{{content}}
{%endfor%}
{%ifadd_generation_prompt%}
{{'<|start_header_id|>assistant<|end_header_id|>\n\n'}}
{%endif%}
)";

// Llama 3.1 and 3.2; the latter asks for the day and has no built-in tools.
constexpr std::string_view kLlama31Program = R"({{bos_token}}
{%ifcustom_toolsisdefined%}
{%settools=custom_tools%}
{%endif%}
{%ifnottools_in_user_messageisdefined%}
{%settools_in_user_message=true%}
{%endif%}
{%ifnotdate_stringisdefined%}
?{%ifstrftime_nowisdefined%}
?{%setdate_string=strftime_now('%d %b %Y')%}
?{%else%}
{%setdate_string='26 Jul 2024'%}
{%endif%}
?{%endif%}
{%ifnottoolsisdefined%}
{%settools=none%}
{%endif%}
{%ifmessages[0].role=='system'%}
{%setsystem_message=messages[0].content|trim%}
{%setmessages=messages[1:]%}
{%else%}
{%setsystem_message=''%}
{%endif%}
{{'<|start_header_id|>system<|end_header_id|>\n\n'}}
?{%iftoolsisnotnone%}

?{%ifbuiltin_toolsisdefinedortoolsisnotnone%}
{{'Environment: ipython\n'}}
{%endif%}
?{%ifbuiltin_toolsisdefined%}
?{{'Tools: '+builtin_tools|reject('equalto','code_interpreter')|join(', ')+'\n\n'}}
?{%endif%}
{{'Cutting Knowledge Date: December 2023\n'}}
{{'Today Date: '+date_string+'\n\n'}}
{%iftoolsisnotnoneandnottools_in_user_message%}
{{'You have access to the following functions. To call a function, please respond with JSON for a function call.'}}
{{'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.'}}
{{'Do not use variables.\n\n'}}
{%fortintools%}
{{t|tojson(indent=4)}}
{{'\n\n'}}
{%endfor%}
{%endif%}
{{system_message}}
{{'<|eot_id|>'}}
{%iftools_in_user_messageandnottoolsisnone%}
{%ifmessages|length!=0%}
{%setfirst_user_message=messages[0].content|trim%}
{%setmessages=messages[1:]%}
{%else%}
{{raise_exception('Cannot put tools in the first user message when there\'s no first user message!')}}
{%endif%}
{{'<|start_header_id|>user<|end_header_id|>\n\n'}}
{{'Given the following functions, please respond with a JSON for a function call '}}
{{'with its proper arguments that best answers the given prompt.\n\n'}}
{{'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.'}}
{{'Do not use variables.\n\n'}}
{%fortintools%}
{{t|tojson(indent=4)}}
{{'\n\n'}}
{%endfor%}
{{first_user_message+'<|eot_id|>'}}
{%endif%}
{%formessageinmessages%}
{%ifnot(message.role=='ipython'ormessage.role=='tool'or'tool_calls'inmessage)%}
{{'<|start_header_id|>'+message.role+'<|end_header_id|>\n\n'+message.content|trim+'<|eot_id|>'}}
{%elif'tool_calls'inmessage%}
{%ifnotmessage.tool_calls|length==1%}
{{raise_exception('This model only supports single tool-calls at once!')}}
{%endif%}
{%settool_call=message.tool_calls[0].function%}
{{'<|start_header_id|>assistant<|end_header_id|>\n\n'}}
{{'{"name": "'+tool_call.name+'", '}}
{{'"parameters": '}}
{{tool_call.arguments|tojson}}
{{'}'}}
{{'<|eot_id|>'}}
{%elifmessage.role=='tool'ormessage.role=='ipython'%}
{{'<|start_header_id|>ipython<|end_header_id|>\n\n'}}
{%ifmessage.contentismappingormessage.contentisiterable%}
{{message.content|tojson}}
{%else%}
{{message.content}}
{%endif%}
{{'<|eot_id|>'}}
{%endif%}
{%endfor%}
{%ifadd_generation_prompt%}
{{'<|start_header_id|>assistant<|end_header_id|>\n\n'}}
{%endif%}
)";

// Llama 2.
constexpr std::string_view kLlama2Program = R"({%ifmessages[0].role=='system'%}
{%setloop_messages=messages[1:]%}
{%setsystem_message=messages[0].content%}
{%else%}
{%setloop_messages=messages%}
{%setsystem_message=false%}
{%endif%}
{%formessageinloop_messages%}
{%if(message.role=='user')!=(loop.index0%2==0)%}
{{raise_exception('Conversation roles must alternate user/assistant/user/assistant/...')}}
{%endif%}
{%ifloop.index0==0andsystem_message!=false%}
{%setcontent='<<SYS>>\n'+system_message+'\n<</SYS>>\n\n'+message.content%}
{%else%}
{%setcontent=message.content%}
{%endif%}
{%ifmessage.role=='user'%}
{{bos_token+'[INST] '+content.strip()+' [/INST]'}}
{%elifmessage.role=='assistant'%}
{{' '+content.strip()+' '+eos_token}}
{%endif%}
{%endfor%}
)";

// Mistral 7B.
constexpr std::string_view kMistralProgram = R"({{bos_token}}
{%formessageinmessages%}
{%if(message.role=='user')!=(loop.index0%2==0)%}
{{raise_exception('Conversation roles must alternate user/assistant/user/assistant/...')}}
{%endif%}
{%ifmessage.role=='user'%}
{{'[INST] '+message.content+' [/INST]'}}
{%elifmessage.role=='assistant'%}
{{message.content+eos_token}}
{%else%}
{{raise_exception('Only user and assistant roles are supported!')}}
{%endif%}
{%endfor%}
)";

}  // namespace snug
