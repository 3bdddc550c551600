"""Loading and unloading of adapters (LoRA) with the bodies of vLLM: for admins, as the RPCs are."""

from frontend.call.call import Call
from frontend.errors import AdminsOnly, InvalidRequest
from frontend.field_names import Names, renaming
from frontend.http.exchange import Exchange
from frontend.parts import FrontendParts
from pagewire.host.addresses import is_loopback
from pagewire_openai.requests import values
from pagewire_openai.requests.fields import Field, Table, read_object
from pagewire_openai.requests.values import Json

LOADED = {
    "lora_name": Field(values.text, "name"),
    "lora_path": Field(values.text, "source"),
    "load_inplace": Field(values.boolean, ""),
    "base_model_name": Field(values.text, ""),
}
UNLOADED = {"lora_name": Field(values.text, "name"), "lora_int_id": Field(values.whole(0, 1 << 31), "")}


async def load_lora_adapter(parts: FrontendParts, body: Json, call: Call, exchange: Exchange) -> None:
    """POST /v1/load_lora_adapter."""
    _require_admin(parts, call, exchange)
    fields = read_object(body, "body", LOADED, ("lora_name", "lora_path"))
    name = fields["lora_name"]
    if name in parts.model.names:
        raise InvalidRequest({"lora_name": "is the name of the model"})
    with renaming(_names(LOADED)):
        await parts.engine.adapters.load(name, fields["lora_path"], pinned=False, tenants=())
    await exchange.respond(200, {"message": f"Success: LoRA adapter '{name}' added successfully."})


async def unload_lora_adapter(parts: FrontendParts, body: Json, call: Call, exchange: Exchange) -> None:
    """POST /v1/unload_lora_adapter."""
    _require_admin(parts, call, exchange)
    name = read_object(body, "body", UNLOADED, ("lora_name",))["lora_name"]
    with renaming(_names(UNLOADED)):
        await parts.engine.adapters.unload(name)
    await exchange.respond(200, {"message": f"Success: LoRA adapter '{name}' removed successfully."})


def _names(table: Table) -> Names:
    """Returns the body's names for the fields."""
    return {field.path: name for name, field in table.items()}


def _require_admin(parts: FrontendParts, call: Call, exchange: Exchange) -> None:
    """Raises AdminsOnly. Without tokens, admins are peers on this machine."""
    is_admin = call.caller.is_admin
    if parts.authenticator.admins_are_local:
        is_admin = is_loopback(exchange.peer) and not exchange.is_forwarded
    if not is_admin:
        raise AdminsOnly("only an admin may load and unload adapters")
