"""Special tokens, and the template of the demo model's chats."""

PAD, BOS, EOS = "<|pad|>", "<|begin|>", "<|end|>"
SYSTEM, USER, ASSISTANT = "<|system|>", "<|user|>", "<|assistant|>"
SPECIAL_TOKENS = [PAD, BOS, EOS, SYSTEM, USER, ASSISTANT]  # ids 0 to 5, in this order
TOOL = "<|tool|>"
CALL_BEGIN, CALL_END = "<tool_call>", "</tool_call>"
THINK_BEGIN, THINK_END = "<think>", "</think>"
LATER_TOKENS = [TOOL, CALL_BEGIN, CALL_END, THINK_BEGIN, THINK_END]
"""Special tokens of the second stage; they take the last ids of the vocabulary."""

CHAT_TEMPLATE = """\
{{- bos_token -}}
{#- Tools are shown by their names and parameters: "Tools: get_weather(city), add(a, b)". -#}
{%- set offer = namespace(text='') -%}
{%- for tool in tools or [] -%}
    {%- set names = (tool.function.parameters.properties or {}) | join(', ') -%}
    {%- set before = 'Tools: ' if loop.first else ', ' -%}
    {%- set offer.text = offer.text ~ before ~ tool.function.name ~ '(' ~ names ~ ')' -%}
{%- endfor -%}
{%- if offer.text and (not messages or messages[0]['role'] != 'system') -%}
    {{- '<|system|>' ~ offer.text ~ eos_token -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message['role'] not in ['system', 'user', 'assistant', 'tool'] -%}
        {{- raise_exception('unknown role: ' ~ message['role']) -}}
    {%- endif -%}
    {{- '<|' ~ message['role'] ~ '|>' ~ (message['content'] or '') | trim -}}
    {%- if loop.first and message['role'] == 'system' and offer.text -%}
        {{- ' ' ~ offer.text -}}
    {%- endif -%}
    {%- for call in message['tool_calls'] or [] -%}
        {{- '\\n' if not loop.first or message['content'] -}}
        {{- '<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' -}}
        {{- call.function.arguments | tojson ~ '}\\n</tool_call>' -}}
    {%- endfor -%}
    {{- eos_token -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|assistant|>' -}}
    {%- if enable_thinking is defined and enable_thinking -%}
        {{- '<think>' -}}
    {%- endif -%}
{%- endif -%}
"""
