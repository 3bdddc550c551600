"""Loading and unloading adapters over HTTP."""

from pagewire.internal.v1.engine_pb2 import AdapterResult, UtilityResult


async def test_refusals_name_the_fields_of_the_body(run_api):
    async with run_api() as api:
        bad = AdapterResult(problem="source is bad", code=3, reason="ADAPTER_INVALID", field="source")
        api.service.engine.answers["load_adapter"] = UtilityResult(adapter=bad)
        cases = [
            ("load", {"lora_name": "x", "lora_path": "y"}, 400, "lora_path"),
            ("load", {"lora_name": "a b", "lora_path": "y"}, 400, "lora_name"),
            ("load", {"lora_name": "fake", "lora_path": "y"}, 400, "lora_name"),
            ("unload", {"lora_name": "x"}, 404, "lora_name"),
        ]
        for what, body, status, field in cases:
            answer = await api.post(f"/v1/{what}_lora_adapter", **body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (status, field), answer.text
            assert answer.json()["error"]["message"].startswith(f"{field}: ")
